package legs

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An engine that answers each read after a while, until it is closed.
type slowly struct {
	after  time.Duration
	closed chan struct{}
}

func (s slowly) Read(p []byte) (int, error) {
	select {
	case <-time.After(s.after):
		return copy(p, "x"), nil
	case <-s.closed:
		return 0, io.ErrClosedPipe
	}
}

func TestIdle(t *testing.T) {
	const limit = 10 * time.Second
	f := func(name string, after, between time.Duration, over bool) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := slowly{after, make(chan struct{})}
				start, calls := time.Now(), 0
				i := WatchIdle(limit, func(d time.Duration) {
					calls++
					assert.Equal(t, limit, d)
					close(src.closed)
				})
				defer i.Stop()
				var err error
				for n := 0; n < 5 && err == nil; n++ {
					time.Sleep(between)
					_, err = i.Read(src, make([]byte, 1))
				}
				if !over {
					require.NoError(t, err)
					time.Sleep(2 * limit) // nobody waits any more
					synctest.Wait()
					assert.Zero(t, calls)
					return
				}
				require.ErrorIs(t, err, io.ErrClosedPipe)
				assert.Equal(t, 1, calls)
				assert.Equal(t, between+limit, time.Since(start))
			})
		})
	}
	f("an engine that goes on is left alone, however long it takes", limit-1, 0, false)
	f("so is one whose client is slow", 0, 3*limit, false)
	f("a slow client with an engine that goes on", limit/2, 3*limit/2, false)
	f("silence ends the read when it has lasted for the limit", limit+1, time.Second, true)
	f("counted from when the read began", limit+1, 7*time.Second, true)
}

func TestIdleThatIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := WatchIdle(time.Second, func(time.Duration) { assert.Fail(t, "it was stopped") })
		i.Stop()
		i.Stop()
		_, err := i.Read(slowly{time.Minute, nil}, make([]byte, 1))
		require.NoError(t, err)
	})
}

func TestNoIdleHasNoDeadline(t *testing.T) {
	var none *Idle
	n, err := none.Read(strings.NewReader("ab"), make([]byte, 9))
	assert.Equal(t, 2, n)
	require.NoError(t, err)
	none.Stop()
}
