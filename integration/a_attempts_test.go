package integration

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

func TestF07EveryAttemptHasItsOwnRoomAndRid(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: 2, decodes: 2, orchestrator: retrying(5, nil)})
			s.p.SetFault(onceAt(t.Context(), s.d, simengine.Fault{Status: 500, Body: []byte(`{"message":"out of luck"}`)}))
			s.ok(c)
			s.idle()
			var attempts [2]simengine.Record
			for i := range attempts {
				p, d := generations(s.prefills[i]), generations(s.decodes[i])
				require.Len(t, p, 1)
				require.Len(t, d, 1)
				requireRooms(t, p[0], 1)
				assert.Equal(t, p[0].Rooms, d[0].Rooms, "both legs of an attempt are in one room")
				assert.Equal(t, p[0].Rids, d[0].Rids)
				attempts[i] = p[0]
			}
			assert.NotEqual(t, attempts[0].Rooms, attempts[1].Rooms)
			assert.NotEqual(t, attempts[0].Rids, attempts[1].Rids)
		})
	}
}

func TestASecondAttemptAvoidsTheWorkerThatFailed(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		prefills: 2, decodes: 2, policy: "random", orchestrator: retrying(2, nil),
	})
	s.prefills[0].SetFault(always(simengine.Fault{Status: 500, Body: []byte(`{"message":"out of luck"}`)}))
	for range 20 {
		s.ok(generateCall(2))
	}
	assert.NotEmpty(t, generations(s.prefills[0]))
	assert.Len(t, generations(s.prefills[1]), 20)
}

// F10, as far as SGLang goes: there is no hand-off metadata to use again, a
// decode's 4xx is final and prefill is freed.
func TestF10DecodeRefusesAndPrefillIsFreed(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: 2, decodes: 2, orchestrator: retrying(5, nil)})
			for i, d := range s.decodes {
				d.SetFault(onceAt(t.Context(), s.prefills[i], simengine.Fault{Status: 400, Body: []byte(tooLong)}))
			}
			r := s.post(c)
			assert.Equal(t, 400, r.status)
			assert.Equal(t, tooLong, r.body)
			s.idle()
			assert.Len(t, append(generations(s.decodes[0]), generations(s.decodes[1])...), 1, "one attempt")
			for i, d := range s.decodes {
				for _, rec := range generations(d) {
					freed(t, s.prefills[i], 0, rec.FirstByte)
				}
			}
		})
	}
}

// F11: where nothing is tried again, a bad pair's requests fail cleanly, the
// others are served, and no worker is blamed alone.
func TestF11ABadPairFailsCleanlyAndBlamesThePair(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefills: 2, decodes: 2, policy: "random"})
	partner := make(chan *simengine.Engine, 1) // of the request under way: they come one by one
	for _, d := range s.decodes {
		d.SetFault(func(simengine.Record) *simengine.Fault {
			partner <- d
			return nil
		})
	}
	for _, p := range s.prefills {
		p.SetFault(func(simengine.Record) *simengine.Fault {
			select {
			case d := <-partner:
				if p == s.prefills[0] && d == s.decodes[0] {
					return &simengine.Fault{FailTransfer: true}
				}
			case <-t.Context().Done():
			}
			return nil
		})
	}
	failed, served := 0, 0
	for range 40 { // of which the pair gets three
		switch r := s.post(generateCall(4)); r.status {
		case 200:
			served++
		case 500, 502, 503:
			failed++
		default:
			assert.Fail(t, "another status", "%d %s", r.status, r.body)
		}
	}
	assert.Positive(t, failed)
	assert.Positive(t, served)
	for id, outcomes := range s.outcomes(80) {
		assert.NotContains(t, outcomes, pd.Fault, "%s is well", id)
	}
}
