package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// requireRooms requires n rooms that no engine dies of.
func requireRooms(t *testing.T, rec simengine.Record, n int) {
	t.Helper()
	require.Len(t, rec.Rooms, n)
	for _, room := range rec.Rooms {
		number, err := strconv.ParseUint(string(room), 10, 64)
		require.NoError(t, err, "a room is a plain integer in JSON")
		require.NotZero(t, number)
		require.LessOrEqual(t, number, uint64(math.MaxInt64))
	}
}

func TestBothLegsAreInOneFreshRoom(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	for _, c := range calls(2) {
		s.ok(c)
	}
	p, d := generations(s.p), generations(s.d)
	require.Len(t, p, 6)
	require.Len(t, d, 6)
	seen := map[simengine.Room]bool{}
	for i := range p {
		requireRooms(t, p[i], 1)
		assert.Equal(t, p[i].Rooms, d[i].Rooms)
		assert.Equal(t, p[i].Rids, d[i].Rids)
		assert.Equal(t, string(p[i].Body), string(d[i].Body), "both legs get the same body")
		assert.False(t, seen[p[i].Rooms[0]])
		seen[p[i].Rooms[0]] = true
	}
}

// What a client says of bootstrap would hang a decode (room 0), kill a prefill
// (a negative room) or send its KV elsewhere.
func TestAClientsBootstrapFieldsNeverPass(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	f := func(name string, c call) {
		t.Run(name, func(t *testing.T) {
			before := len(generations(s.p))
			s.ok(c)
			p, d := generations(s.p)[before], generations(s.d)[before]
			requireRooms(t, p, 1)
			assert.Equal(t, p.Rooms, d.Rooms)
			for _, rec := range []simengine.Record{p, d} {
				assert.NotContains(t, string(rec.Body), "203.0.113.9")
				assert.NotContains(t, string(rec.Body), "424242424242")
			}
		})
	}
	for _, c := range calls(2) {
		for _, room := range []any{0, -1, 424242424242, "424242424242", nil, []int{424242424242}} {
			f(fmt.Sprintf("%s with room %v", c.name, room), c.with(object{
				"bootstrap_room": room, "bootstrap_host": "203.0.113.9", "bootstrap_port": 424242424242,
			}))
		}
	}
	t.Run("named twice and escaped", func(t *testing.T) {
		before := len(generations(s.p))
		body := `{"bootstrap_room":424242424242,"text":"a","\u0062ootstrap_room":-424242424242,"bootstrap_host":"203.0.113.9",` +
			`"sampling_params":{"max_new_tokens":2},"bootstrap_room":0,"bootstrap_\u0068ost":"203.0.113.9"}`
		r := s.do(http.MethodPost, generatePath, body)
		require.Equal(t, 200, r.status, r.body)
		p := generations(s.p)[before]
		requireRooms(t, p, 1)
		assert.NotContains(t, string(p.Body), "424242424242")
		assert.NotContains(t, string(p.Body), "203.0.113.9")
	})
}

func TestAClientsOverrideHeadersNeverPass(t *testing.T) {
	t.Parallel()
	overriding := func(c *simengine.Config) { c.HeaderOverrides = true }
	s := newStack(t, setup{prefill: overriding, decode: overriding})
	for i, c := range calls(2) {
		r := s.post(c,
			"x-override-bootstrap-room", "0", "X-Override-Bootstrap-Host", "203.0.113.9", "x-override-bootstrap-port", "1",
			"x-override-rid", "mine", "x-override-routed-dp-rank", "5", "x-override-disagg-prefill-dp-rank", "5",
			"x-override-temperature", "0.5")
		require.Equal(t, 200, r.status, r.body)
		for _, e := range s.engines() {
			rec := generations(e)[i]
			requireRooms(t, rec, 1)
			assert.Len(t, rec.Rids[0], 32)
			for name := range rec.Header {
				assert.NotContains(t, name, "Bootstrap")
				assert.NotContains(t, name, "Rid")
				assert.NotContains(t, name, "Rank")
			}
			assert.Equal(t, "0.5", rec.Header.Get("X-Override-Temperature"), "an override that concerns the client alone does")
		}
	}
}

// Every item of a batch has a room of its own.
func TestNoRoomIsUsedTwiceInTwentyThousand(t *testing.T) {
	t.Parallel()
	prefill := readyPrefill(t)
	decode := scripted(t, "decode-0", pd.Decode, func(w http.ResponseWriter, _ *http.Request, _ received) {
		_, _ = io.WriteString(w, "[]")
	})
	s := newStack(t, setup{prefills: -1, decodes: -1, scripts: []*script{prefill, decode}})
	var clients errgroup.Group
	for range 4 {
		clients.Go(func() error {
			for i := range 50 {
				body := `{"text":["a"` + strings.Repeat(`,"a"`, 111) + `]}`
				if i%10 == 0 {
					body = `{"text":"a"}`
				}
				resp, err := s.send(t.Context(), http.MethodPost, generatePath, body)
				if err != nil {
					return err
				}
				if r := whole(resp); r.status != 200 || r.err != nil {
					return fmt.Errorf("status %d, %w", r.status, r.err)
				}
			}
			return nil
		})
	}
	require.NoError(t, clients.Wait())
	seen := map[string]bool{}
	for _, got := range decode.requests() {
		var body struct {
			Room json.RawMessage `json:"bootstrap_room"`
		}
		require.NoError(t, json.Unmarshal([]byte(got.body), &body))
		for room := range strings.SplitSeq(strings.Trim(string(body.Room), "[]"), ",") {
			require.False(t, seen[room], "room %s", room)
			seen[room] = true
		}
	}
	assert.Len(t, seen, 4*(45*112+5))
	assert.Len(t, prefill.requests(), 200)
}

// A worker that gives no port lets decode use its own default.
func TestAPortThatIsNotKnownIsSentAsNull(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{workers: func(all []*pd.Worker) {
		for _, w := range all {
			w.BootstrapPort = 0
		}
	}})
	s.d.SetFault(always(simengine.Fault{Status: 418, Body: []byte(`{}`)}))
	assert.Equal(t, 418, s.post(generateCall(2)).status)
	assert.Contains(t, string(generations(s.d)[0].Body), `"bootstrap_port":null`)
}
