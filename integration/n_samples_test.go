package integration

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// sampled is a call for samples with seeds from seed on.
func sampled(c call, samples, seed int) call {
	c.name = fmt.Sprintf("%s n=%d", c.name, samples)
	if c.path != generatePath {
		return c.with(object{"n": samples, "seed": seed})
	}
	params := object{"n": samples, "sampling_seed": seed}
	maps.Copy(params, c.body["sampling_params"].(object))
	return c.with(object{"sampling_params": params})
}

func batches(tokens int) []call {
	return []call{
		{"generate of a batch", generatePath, generateCall(tokens).with(object{"text": []string{"one", "two", "three"}}).body},
		{"completions of a batch", completionsPath, completionsCall(tokens).with(object{"prompt": []string{"one", "two", "three"}}).body},
	}
}

// Every sample is an exchange with a room of its own; a sample's text is what an
// engine makes of the prompt with the sample's seed. Samples come prompt by
// prompt.
func TestSamplesAreWhatTheirSeedsSay(t *testing.T) {
	t.Parallel()
	for _, c := range append([]call{generateCall(5), chatCall(5), completionsCall(5)}, batches(5)...) {
		for _, n := range []int{2, 5} {
			c := sampled(c, n, 100)
			for _, c := range []call{c, c.streamed()} {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					s := newStack(t, setup{prefills: 2, decodes: 2, decode: func(c *simengine.Config) { c.MaxTotalTokens = 1 << 16 }})
					r := s.ok(c)
					want, err := simengine.ExpectedFor(c.path, []byte(c.json()))
					require.NoError(t, err)
					texts := textOf(t, c.path, r)
					require.Len(t, texts, len(want))
					for i := range want {
						assert.Equal(t, want[i].Text, texts[i], "index %d", i)
					}
					s.idle()
					assert.Len(t, generations(s.p), n, "all samples have the same prefill")
					assert.Empty(t, generations(s.prefills[1]))
					requireSamples(t, generations(s.p), len(want)/n)
					requireSamples(t, generations(s.d), len(want)/n)
				})
			}
		}
	}
}

// requireSamples requires exchanges of one sample each, in rooms of their own.
func requireSamples(t *testing.T, all []simengine.Record, items int) {
	t.Helper()
	rooms, rids := map[simengine.Room]bool{}, map[string]bool{}
	for _, rec := range all {
		requireRooms(t, rec, items)
		for i := range rec.Rooms {
			rooms[rec.Rooms[i]], rids[rec.Rids[i]] = true, true
		}
		assert.Contains(t, string(rec.Body), `"n":1`)
	}
	assert.Len(t, rooms, items*len(all))
	assert.Len(t, rids, items*len(all))
}

func TestSamplesAreOneAnswerWithOneUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []call{chatCall(5), completionsCall(5), batches(5)[1]} {
		c := sampled(c, 3, 7)
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{})
			single := c.with(object{"n": 1})
			one := decoded[completion](t, s.ok(single).body)
			answer := decoded[completion](t, s.ok(c).body)
			choices := 3 * len(one.Choices)
			require.Len(t, answer.Choices, choices)
			for i, choice := range answer.Choices {
				assert.Equal(t, i, choice.Index)
				assert.Equal(t, "length", *choice.FinishReason)
			}
			assert.Equal(t, one.Usage.Prompt, answer.Usage.Prompt, "a prompt counts once")
			assert.Equal(t, 5*choices, answer.Usage.Completion)
			assert.Equal(t, answer.Usage.Prompt+5*choices, answer.Usage.Total)

			events := data(t, s.ok(c.with(object{"stream": true, "stream_options": object{"include_usage": true}})))
			ids, usages := map[string]bool{}, []*usage{}
			finished := map[int]int{}
			for _, event := range events {
				e := decoded[completion](t, event)
				ids[e.ID+fmt.Sprint(e.Created)] = true
				if e.Usage != nil {
					usages = append(usages, e.Usage)
				}
				for _, choice := range e.Choices {
					if choice.FinishReason != nil {
						finished[choice.Index]++
					}
				}
			}
			assert.Len(t, ids, 1, "one id and one time")
			require.Len(t, usages, 1)
			assert.Equal(t, 5*choices, usages[0].Completion)
			assert.Len(t, finished, choices)
			for i, times := range finished {
				assert.Equal(t, 1, times, "index %d ends once", i)
			}
		})
	}
}

// seeded picks out the sample of one seed.
func seeded(seed int, f simengine.Fault) func(simengine.Record) *simengine.Fault {
	return func(rec simengine.Record) *simengine.Fault {
		if strings.Contains(string(rec.Body), fmt.Sprintf(`seed":%d`, seed)) {
			return &f
		}
		return nil
	}
}

func TestTheFirstSampleThatFailsFailsTheCall(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		for _, failing := range []pd.Role{pd.Prefill, pd.Decode} {
			c := sampled(c, 4, 100)
			t.Run(fmt.Sprintf("%s on %s", c.name, failing), func(t *testing.T) {
				t.Parallel()
				// Decode's KV comes late, so that no sample commits before one fails.
				s := newStack(t, setup{prefill: func(c *simengine.Config) { c.Speed.PrefillDelay = time.Minute }})
				e, other := s.p, s.d
				if failing == pd.Decode {
					e, other = s.d, s.p
				}
				e.SetFault(func(rec simengine.Record) *simengine.Fault {
					f := seeded(102, simengine.Fault{Status: 422, Body: []byte(tooLong)})(rec)
					if f != nil {
						_, _ = e.Wait(t.Context(), 4), other.Wait(t.Context(), 4)
					}
					return f
				})
				r := s.post(c)
				assert.Equal(t, 422, r.status)
				assert.Equal(t, tooLong, r.body)
				s.idle()
				var failed time.Time
				for _, rec := range generations(e) {
					if rec.Status == 422 {
						failed = rec.FirstByte
					}
				}
				require.False(t, failed.IsZero(), "one sample is refused by the engine")
				for i := range 4 {
					over(t, s.p, i, failed)
					over(t, s.d, i, failed)
				}
				assert.Len(t, generations(s.d), 4)
			})
		}
	}
}

func TestASampleThatFailsAfterTheCommitBreaksTheStream(t *testing.T) {
	t.Parallel()
	for _, c := range []call{generateCall(200), chatCall(200), completionsCall(200)} {
		c := sampled(c, 4, 100).streamed()
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{decode: func(c *simengine.Config) { c.Speed.TokenInterval = 10 * time.Millisecond }})
			const failure = `{"error":{"message":"gone wrong","code":500}}`
			s.d.SetFault(seeded(101, simengine.Fault{ErrorAt: 10, ErrorEvent: failure}))
			r := s.post(c.with(object{"stream_options": object{"include_usage": true}}))
			assert.Equal(t, 200, r.status)
			assert.Error(t, r.err, "the end is broken")
			assert.Zero(t, strings.Count(r.body, "[DONE]"))
			assert.Zero(t, strings.Count(r.body, `"usage":{`))
			assert.Equal(t, 1, strings.Count(r.body, "data: "+failure+"\n\n"))
			ended := time.Now()
			for i := range 4 {
				over(t, s.d, i, ended)
			}
		})
	}
}

func TestMoreSamplesThanAllowedAreRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	f := func(name string, c call, says string) {
		t.Run(name+" "+c.name, func(t *testing.T) {
			r := s.post(c)
			assert.Equal(t, 400, r.status)
			assert.Contains(t, r.body, says)
			assert.Equal(t, "invalid_request", r.header.Get("X-Tandem-Error"))
		})
	}
	for _, c := range calls(2) {
		f("too many", sampled(c, 129, 1), "n must be at most 128")
		f("none", sampled(c, 0, 1), "n must be a positive integer")
		f("fewer than none", sampled(c, -1, 1), "n must be a positive integer")
	}
	f("text for a number", chatCall(2).with(object{"n": "2"}), "n must be a positive integer")
	f("a fraction", chatCall(2).with(object{"n": 1.5}), "n must be a positive integer")
	f("a seed that is no number", chatCall(2).with(object{"n": 2, "seed": "x"}), "seed must be an integer")
	for _, e := range s.engines() {
		assert.Empty(t, e.Records(), "%s hears nothing", e.ID())
	}
}

// A client that leaves frees every sample on both engines.
func TestAClientThatLeavesFreesEverySample(t *testing.T) {
	t.Parallel()
	for _, c := range calls(500) {
		c := sampled(c, 3, 1)
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{decode: func(c *simengine.Config) { c.Speed.TokenInterval = 10 * time.Millisecond }})
			call := s.start(c)
			s.eventually(func() bool { return s.d.Loads().Running == 3 }, "all samples run")
			left := time.Now()
			call.leave()
			for i := range 3 {
				rec := freed(t, s.d, i, left)
				s.told(s.d, rec.Rids[0])
			}
		})
	}
}

func TestOneSampleSaidPlainlyIsNoFanOut(t *testing.T) {
	t.Parallel()
	s, d := scriptedPair(t, setup{}, func(w http.ResponseWriter, _ *http.Request, _ received) {
		_, _ = w.Write([]byte(`{"choices":[ ]}`))
	})
	for _, body := range []string{`{"messages":[],"n":1}`, `{"messages":[],"n":1, "n" : 1}`, `{"messages":[],"n":null,"seed":"x"}`} {
		r := s.do(http.MethodPost, chatPath, body)
		assert.Equal(t, `{"choices":[ ]}`, r.body)
		got := d.requests()
		requireUntouched(t, body, got[len(got)-1].body)
	}
	assert.Len(t, d.requests(), 3)
}
