package pd

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const doneSSE = "data: [DONE]\n\n"

func TestStreamCommitsWithItsFirstSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Generate, generateSSE, 3)
		require.False(t, f.done)
		f.commit(1)
		require.True(t, f.done, "the others have not committed yet")
		assert.Equal(t, http.StatusOK, f.resp.Status)
		assert.EqualValues(t, -1, f.resp.Length)
		assert.True(t, f.resp.Stream)
		assert.Equal(t, http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, "X-Sample": {"1"}}, f.resp.Header)

		f.write(1, `data: {"text":"a"}`+"\n\n")
		assert.Equal(t, `data: {"index":1,"text":"a"}`+"\n\n", f.read())
		f.commit(2)
		f.write(2, `data: {"text":"b"}`+"\n\n")
		assert.Equal(t, `data: {"index":2,"text":"b"}`+"\n\n", f.read())
		f.commit(0)
		for j := range 3 {
			f.write(j, doneSSE)
			f.end(j, nil)
		}
		assert.Equal(t, doneSSE, f.read())
		_, err := f.resp.Body.Read(make([]byte, 1))
		assert.Equal(t, io.EOF, err)
		f.settled()
		require.NoError(t, f.resp.Body.Close())
	})
}

func TestStreamEndsOnceForAllSamples(t *testing.T) {
	usage := `data: {"id":"x","created":1,"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}` + "\n\n"
	merged := `data: {"id":"call-1","created":1,"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}` + "\n\n"
	for _, f := range []struct {
		name string
		tail [2]string
		want string
	}{
		{"usage and [DONE] come once", [2]string{usage + doneSSE, usage + doneSSE}, merged + doneSSE},
		{"[DONE] comes only if all samples said so", [2]string{usage, usage + doneSSE}, merged},
		{"nothing is made up", [2]string{": a\n\n", ": a\n\n"}, ": a\n\n: a\n\n"},
		{"streams without an event", [2]string{"", ""}, ""},
		{"a last event without its end gets one", [2]string{": a\n\n", `data: [DONE]` + "\n"}, ": a\n\n"},
		{"which the next event needs", [2]string{": a", ": a\n\n"}, ": a\n\n: a\n\n"},
	} {
		t.Run(f.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ft := fanOut(t, Chat, chatSSE, 2)
				for j, tail := range f.tail {
					ft.commit(j)
					go func() {
						_, _ = io.WriteString(ft.samples[j].body, tail)
						_ = ft.samples[j].body.Close()
					}()
				}
				got, err := io.ReadAll(ft.resp.Body)
				require.NoError(t, err)
				assert.Equal(t, f.want, string(got))
				ft.settled()
			})
		})
	}
}

func TestStreamPassesEventsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Generate, generateSSE, 2)
		f.commit(0)
		f.commit(1)
		go func() {
			for _, c := range "data: {\"text\":\"a\"}\n\n" {
				for j := range 2 {
					_, _ = io.WriteString(f.samples[j].body, string(c))
				}
			}
			for j := range 2 {
				_ = f.samples[j].body.Close()
			}
		}()
		got, err := io.ReadAll(f.resp.Body)
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{`data: {"index":0,"text":"a"}`, `data: {"index":1,"text":"a"}`, ""}, strings.Split(string(got), "\n\n"))
		f.settled()
	})
}

// A slow client holds every engine back: one event waits in its goroutine, the
// next is not read.
func TestStreamIsReadNoFasterThanTheClientReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Generate, generateSSE, 2)
		f.commit(0)
		f.commit(1)
		var second [2]func() bool
		for j := range 2 {
			assert.True(t, f.write(j, "data: {}\n\n")())
			second[j] = f.write(j, "data: {}\n\n")
			assert.False(t, second[j]())
		}
		f.read()
		synctest.Wait()
		assert.True(t, second[0]() != second[1](), "one event read lets one sample go on")
		f.read()
		synctest.Wait()
		assert.True(t, second[0]() && second[1]())
		require.NoError(t, f.resp.Body.Close())
		f.settled()
	})
}

func TestStreamDoesNotCommitOnceAFailureIsKnown(t *testing.T) {
	for range 20 { // of the two, open may see either first
		failed := refusal("first")
		ctx, cancel := context.WithCancel(t.Context())
		s := newMergedStream(&fan{
			o: new(Orchestrator), req: new(Request), samples: make([]*Request, 1), plans: make([]*Plan, 1),
			ctx: ctx, cancel: cancel, ended: make(chan struct{}),
			run: func(context.Context, *Request, *Plan) (*Response, error) { return nil, ErrCancelled(StageClient) },
		})
		s.commits <- &Response{}
		s.fail(failed)
		resp, err := s.open()
		assert.Nil(t, resp)
		assert.Same(t, failed, err)
	}
}

// After the commit the failing sample's event passes, then the stream breaks.
func TestStreamBreaksWithTheFirstSampleThatFails(t *testing.T) {
	failed := refusal("decode_failed")
	errorEvent := "data: " + string(failed.JSON(Chat)) + "\n\n"
	for _, f := range []struct {
		name string
		fail func(f *fanTest)
		want string // what the client still gets
		code string
	}{
		{"in the midst of its stream: the event is its own", func(f *fanTest) {
			f.commit(1)
			go func() {
				_, _ = io.WriteString(f.samples[1].body, `data: {"error":{"code":500}}`+"\n\n")
				_ = f.samples[1].body.CloseWithError(failed)
			}()
		}, `data: {"error":{"code":500}}` + "\n\n", "decode_failed"},
		{"before its own commit: the event is made, after the others were cancelled", func(f *fanTest) {
			f.say(1, failed)
			assert.True(f.t, f.samples[2].left, "though the client has not read on")
		}, errorEvent, "decode_failed"},
		{"in the midst of an event: the rest of it is dropped", func(f *fanTest) {
			f.commit(1)
			go func() {
				_, _ = io.WriteString(f.samples[1].body, `data: {"id":"x","choi`+"\n\n"+`data: {"error":{"code":500}}`+"\n\n")
				_ = f.samples[1].body.CloseWithError(failed)
			}()
		}, `data: {"error":{"code":500}}` + "\n\n", "decode_failed"},
		{"with an error event and a good end: the event is its own", func(f *fanTest) {
			f.commit(1)
			go func() {
				_, _ = io.WriteString(f.samples[1].body, `data: {"error":{"code":500}}`+"\n\n"+doneSSE)
				_ = f.samples[1].body.Close()
			}()
		}, `data: {"error":{"code":500}}` + "\n\n", "sample_failed"},
		{"with an error event and the end of the connection", func(f *fanTest) {
			f.commit(1)
			go func() {
				_, _ = io.WriteString(f.samples[1].body, `data: {"error":{"code":500}}`+"\n\n")
				_ = f.samples[1].body.Close()
			}()
		}, `data: {"error":{"code":500}}` + "\n\n", "sample_failed"},
		{"with an event that cannot be merged, and goes on", func(f *fanTest) {
			f.commit(1)
			go func() { _, _ = io.WriteString(f.samples[1].body, "data: oops\n\ndata: {}\n\n") }()
		}, `"code":"bad_event"`, "bad_event"},
		{"with a last event that cannot be merged", func(f *fanTest) {
			f.commit(1)
			go func() {
				_, _ = io.WriteString(f.samples[1].body, "data: oops")
				_ = f.samples[1].body.Close()
			}()
		}, `"code":"bad_event"`, "bad_event"},
		{"with an answer that is no stream", func(f *fanTest) {
			f.samples[1].verdict <- &Response{Status: 200, Body: io.NopCloser(strings.NewReader(`{}`))}
		}, "bad_answer", "bad_answer"},
		{"with an event that is too large", func(f *fanTest) {
			f.commit(1)
			go func() { _, _ = io.WriteString(f.samples[1].body, "data: "+strings.Repeat("a", 1000)) }()
		}, "event_too_large", "event_too_large"},
	} {
		t.Run(f.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ft := fanOut(t, Chat, chatSSE, 3, func(f *fanTest) { f.o.MaxEvent = 500 })
				ft.commit(0)
				ft.write(0, `data: {"choices":[],"usage":{}}`+"\n\n")
				ft.write(0, doneSSE)
				ft.end(0, nil)
				f.fail(ft)
				got, err := io.ReadAll(ft.resp.Body)
				assert.Equal(t, f.code, AsError(err).Code)
				assert.Contains(t, string(got), f.want)
				assert.Equal(t, 1, strings.Count(string(got), "\n\n"), "one event: no usage and no [DONE]")
				assert.True(t, ft.samples[2].left, "the others are cancelled")
				if f.code == "event_too_large" {
					assert.Equal(t, []string{"event"}, ft.bounds)
				}
				ft.settled()
				require.NoError(t, ft.resp.Body.Close())
			})
		})
	}
}

func TestStreamBreaksOnUsageThatCannotBeMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Chat, chatSSE, 2)
		many := `{"completion_tokens":1` + strings.Repeat(`,"a":1`, 5000) + `}`
		for j := range 2 {
			f.commit(j)
			f.write(j, `data: {"choices":[],"usage":`+many+"}\n\n")
			f.end(j, nil)
		}
		got, err := io.ReadAll(f.resp.Body)
		e := AsError(err)
		assert.Equal(t, "bad_event", e.Code)
		assert.Equal(t, "data: "+string(e.JSON(Chat))+"\n\n", string(got))
		f.settled()
	})
}

func TestStreamThatIsClosedEndsEverySample(t *testing.T) {
	for name, setUp := range map[string]func(f *fanTest){
		"before the others have committed": func(f *fanTest) {},
		"while samples wait for their engines": func(f *fanTest) {
			f.commit(1)
			f.commit(2)
		},
		"while events wait for the client": func(f *fanTest) {
			f.commit(1)
			f.write(0, "data: {}\n\n")
			f.write(1, "data: {}\n\n")
		},
		"in the midst of an event": func(f *fanTest) {
			f.write(0, "data: {}\n\n")
			_, err := f.resp.Body.Read(make([]byte, 3))
			require.NoError(f.t, err)
		},
		"when all samples have ended": func(f *fanTest) {
			f.commit(1)
			f.commit(2)
			for j := range 3 {
				f.end(j, nil)
			}
		},
	} {
		for how, leave := range map[string]func(f *fanTest){
			"by Close": func(f *fanTest) {
				require.NoError(f.t, f.resp.Body.Close())
				f.givenBack()
				_, err := io.Copy(io.Discard, f.resp.Body)
				assert.Equal(f.t, Cancelled, AsError(err).Kind)
				require.NoError(f.t, f.resp.Body.Close())
			},
			"by the client": func(f *fanTest) {
				f.cancel()
				f.settled()
				require.NoError(f.t, f.resp.Body.Close())
			},
			"by Close during a Read": func(f *fanTest) {
				read := make(chan struct{})
				go func() {
					defer close(read)
					_, _ = io.Copy(io.Discard, f.resp.Body)
				}()
				synctest.Wait()
				require.NoError(f.t, f.resp.Body.Close())
				<-read
				f.settled()
			},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := fanOut(t, Generate, generateSSE, 3)
					f.commit(0)
					setUp(f)
					leave(f)
				})
			})
		}
	}
}

func TestStreamOfAClientWhoLeavesIsNotCalledWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Generate, generateSSE, 2)
		f.commit(0)
		f.cancel()
		got, err := io.ReadAll(f.resp.Body)
		assert.Empty(t, got, "there is nobody to be told")
		assert.Equal(t, Cancelled, AsError(err).Kind)
		f.settled()
	})
}
