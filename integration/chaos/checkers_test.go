package chaos

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pools"
)

// forged is a history that a test makes up: times count from its start.
type forged struct {
	t        *testing.T
	start    time.Time
	timeline *timeline
	stalls   *stalls
	told     []Violation
}

func newForged(t *testing.T) *forged {
	start := time.Now()
	return &forged{t: t, start: start, timeline: newTimeline(), stalls: newStalls(start.Add(time.Hour))}
}

func (f *forged) report(v Violation) { f.told = append(f.told, v) }

func (f *forged) at(d time.Duration) time.Time { return f.start.Add(d) }

// excused is what a run excuses: pauses of the engine, stalls of the process.
func (f *forged) excused(engine string, from, to time.Time) time.Duration {
	return f.timeline.paused(engine, from, to) + f.stalls.lost(from, to)
}

// spell puts an engine out of order for a time.
func (f *forged) spell(engine string, from, to time.Duration, s spell) {
	s.from = f.at(from)
	f.timeline.begin(engine, s)(f.at(to))
}

// holds and breaks require that no violation, or one, was told since the last look.
func (f *forged) holds(msg string) {
	f.t.Helper()
	assert.Empty(f.t, f.told, msg)
	f.told = nil
}

func (f *forged) breaks(invariant, says string) {
	f.t.Helper()
	require.Len(f.t, f.told, 1)
	assert.Equal(f.t, invariant, f.told[0].Invariant)
	assert.Contains(f.t, f.told[0].String(), says)
	f.told = nil
}

// record is a leg of request id that arrived at a time, with items of rid and room.
func (f *forged) record(id string, arrived time.Duration, ridsAndRooms ...string) simengine.Record {
	r := simengine.Record{Path: generatePath, Header: http.Header{requestIDHeader: {id}}, Arrived: f.at(arrived), Body: []byte("{}")}
	for i := 0; i < len(ridsAndRooms); i += 2 {
		r.Rids = append(r.Rids, ridsAndRooms[i])
		r.Rooms = append(r.Rooms, simengine.Room(ridsAndRooms[i+1]))
	}
	return r
}

func TestALegThatOutlivesItsRequestIsFound(t *testing.T) {
	f := newForged(t)
	c := newLegChecker(f.report, f.excused)
	freed := func(r simengine.Record, at time.Duration) simengine.Record { r.Freed = f.at(at); return r }
	c.began("a", false)
	prefill, decode := f.record("a", 0, "r", "1"), f.record("a", 0, "r", "1")
	c.saw("p", simengine.Prefill, prefill)
	c.saw("d", simengine.Decode, decode)
	c.look(f.at(time.Minute))
	f.holds("the request is not over")
	c.ended("a", f.at(time.Minute), false)
	c.saw("p", simengine.Prefill, freed(prefill, time.Minute+legLimit))
	c.look(f.at(time.Minute + legLimit + slack))
	f.holds("both are in time")
	c.look(f.at(time.Minute + legLimit + slack + 1))
	f.breaks(invariantLegs, "request a on d: alive 1.25s")
	c.look(f.at(2 * time.Minute))
	f.holds("it is told once")
	assert.Equal(t, 1, c.alive())
	c.saw("d", simengine.Decode, freed(decode, 3*time.Minute))
	assert.Zero(t, c.alive())

	// A leg that comes and goes between two looks.
	c.began("b", false)
	c.ended("b", f.at(0), false)
	late := f.record("b", time.Second, "r2", "2")
	c.saw("d", simengine.Decode, late)
	c.saw("d", simengine.Decode, freed(late, 2*time.Second))
	f.breaks(invariantLegs, "request b on d: alive 2s")

	c.began("bad", true)
	c.saw("p", simengine.Prefill, f.record("bad", 0))
	f.breaks(invariantLegs, "request bad on p: a leg of a request that is to be refused")

	// One that nobody asked for.
	c.saw("d", simengine.Decode, f.record("nobody", 0, "r3", "3"))
	f.breaks(invariantLegs, "no known request")
}

func TestALegIsExcusedForPausesAndStallsAndPrefillForReadingOn(t *testing.T) {
	f := newForged(t)
	c := newLegChecker(f.report, f.excused)
	f.spell("d", time.Second, 9*time.Second, spell{paused: true})
	f.stalls.spans = []spell{{from: f.at(9 * time.Second), to: f.at(10 * time.Second)}}
	for _, id := range []string{"cut", "whole"} {
		c.began(id, false)
		c.ended(id, f.at(time.Second), id == "whole")
	}
	c.saw("d", simengine.Decode, f.record("cut", 0, "r1", "1"))
	c.look(f.at(10*time.Second + legLimit))
	f.holds("paused and stalled for all but its limit")
	c.look(f.at(10*time.Second + legLimit + slack + 1))
	f.breaks(invariantLegs, "request cut on d")

	c.saw("p", simengine.Prefill, f.record("whole", 0, "r2", "2"))
	c.look(f.at(time.Second + legLimit + drainLimit + slack))
	f.holds("decode has ended well, so prefill is read to its end")
	c.look(f.at(time.Second + legLimit + drainLimit + slack + 1))
	f.breaks(invariantLegs, "request whole on p")
}

func TestARoomThatIsUsedTwiceIsFound(t *testing.T) {
	p, d := simengine.Prefill, simengine.Decode
	f := newForged(t)
	fresh := func() *roomChecker {
		c := newRoomChecker(f.report)
		c.saw("p", p, f.record("a", 0, "r1", "1", "r2", "2"))
		c.saw("d", d, f.record("a", 0, "r1", "1", "r2", "2"))
		f.holds("a pair shares its rooms")
		return c
	}
	ended := f.record("a", 0, "r1", "1", "r2", "2")
	ended.Freed = f.at(time.Second)
	fresh().saw("d", d, ended)
	f.holds("a leg's end is no other leg")

	fresh().saw("p2", p, f.record("a", 0, "r1", "1"))
	f.breaks(invariantRooms, "room 1 has had its prefill leg, on p")
	fresh().saw("d", d, f.record("a", 0, "r2", "2"))
	f.breaks(invariantRooms, "room 2 has had its decode leg")

	c := newRoomChecker(f.report)
	c.saw("p", p, f.record("a", 0, "r1", "1"))
	c.saw("d", d, f.record("b", 0, "r1", "1"))
	f.breaks(invariantRooms, "another request")
	c = newRoomChecker(f.report)
	c.saw("p", p, f.record("a", 0, "r1", "1"))
	other := f.record("a", 0, "r1", "1")
	other.Body = []byte(`{"n":1}`)
	c.saw("d", d, other)
	f.breaks(invariantRooms, "another body")

	c = fresh()
	c.forget()
	c.saw("p", p, f.record("b", 0, "r1", "1"))
	f.holds("what is forgotten is new")
}

func TestARidThatComesAgainIsFoundUnlessItIsAClientsOwn(t *testing.T) {
	f := newForged(t)
	c := newRoomChecker(f.report)
	c.saw("p", simengine.Prefill, f.record("a", 0, "r1", "1", ownRid+"x", "2"))
	c.saw("p", simengine.Prefill, f.record("a", 0, ownRid+"x", "3"))
	f.holds("a retry keeps the client's rid")
	c.saw("p", simengine.Prefill, f.record("a", 0, "r1", "4"))
	f.breaks(invariantRids, "rid r1 came with room 1 and now comes with room 4")
	c.saw("p", simengine.Prefill, f.record("a", 0, ownRid+"x", "3"))
	f.breaks(invariantRooms, "has had its prefill leg")
}

func TestTheOldestRoomsAreForgotten(t *testing.T) {
	var g generations[int, int]
	for i := range 2*generationSize + 1 {
		g.put(i, i)
	}
	_, oldest := g.get(0)
	assert.False(t, oldest)
	_, old := g.get(generationSize)
	assert.True(t, old)
	assert.LessOrEqual(t, len(g.young)+len(g.old), 2*generationSize)
}

func TestARequestWithoutAnOutcomeIsFound(t *testing.T) {
	f := newForged(t)
	c := newOutcomeChecker(f.report, 10*time.Second, f.stalls.lost)
	f.stalls.spans = []spell{{from: f.at(0), to: f.at(time.Second)}}
	c.began("a", "a call", f.at(0))
	c.began("b", "another call", f.at(0))
	c.look(f.at(11 * time.Second))
	f.holds("a second of it was a stall")
	c.ended("a", f.at(11*time.Second))
	c.look(f.at(12 * time.Second))
	f.breaks(invariantOutcome, "request b: no outcome after 11s, the bound is 10s: another call")
	c.ended("b", f.at(12*time.Second))
	f.holds("it is told once")
	assert.Equal(t, 11*time.Second, c.longest())
	assert.Equal(t, "b (another call)", c.slowest())
}

func TestARefusalWhileAPairIsWellIsFound(t *testing.T) {
	f := newForged(t)
	c := &availabilityChecker{report: f.report, faulty: f.timeline.faulty, prefills: []string{"p0", "p1"}, decodes: []string{"d0"}}
	f.spell("p0", 0, time.Minute, spell{})
	f.spell("p1", 0, time.Second, spell{})
	f.spell("d0", 10*time.Second, 12*time.Second, spell{harmless: true})
	judge := func(status int, code string, began, ended time.Duration) {
		c.answered("a", status, code, f.at(began), f.at(ended))
	}
	well := time.Second + aftermath + recovery + 1
	judge(503, "no_prefill_available", well, well)
	f.breaks(invariantAvailability, "p1 and d0 have been well")
	judge(503, "decode_unavailable", 11*time.Second, 11*time.Second)
	f.breaks(invariantAvailability, "p1 and d0 have been well")
	judge(503, "no_prefill_available", well-2, well-2)
	f.holds("p1 has not been well for long enough")
	judge(503, "no_prefill_available", time.Second, well)
	f.holds("nor has it for all of the request")
	judge(503, "", well, well)
	f.holds("an engine's own word")
	judge(503, "queue_full", well, well)
	f.holds("the router is busy, its workers are not gone")
	judge(502, "prefill_connection_lost", well, well)
	f.holds("no refusal")
	assert.EqualValues(t, 5, c.guarded.Load())
}

func TestFailuresThatNoFaultExcusesAreFound(t *testing.T) {
	f := newForged(t)
	f.spell("p0", 0, time.Second, spell{})
	request := func(c *successChecker, stayed, ok bool, engines ...string) {
		c.began("a")
		c.plan("a", engines...)
		assert.Equal(t, engines, c.engines("a"))
		c.ended("a", stayed, ok, "refused", f.at(0), f.at(time.Second))
	}
	c := newSuccessChecker(f.report, f.timeline.faulty)
	for range 999 {
		request(c, true, true, "p1", "d0")
	}
	request(c, true, false, "p1", "d0")
	request(c, true, false, "p0", "d0")
	request(c, false, false, "p1", "d0")
	c.plan("a", "p1", "d0") // of a request that is over
	c.conclude()
	f.holds("one of a thousand may fail, and those that met a fault or left do not count")
	assert.Equal(t, 1000, c.clean)
	assert.Equal(t, 1003, c.plans)
	assert.Empty(t, c.planned)
	request(c, true, false, "p1", "d0", "p1", "d1")
	c.conclude()
	require.Len(t, f.told, 3)
	assert.Contains(t, f.told[0].String(), "2 of 1001 requests that no fault touched failed")
	assert.Contains(t, f.told[2].String(), "refused after 1s on [p1 d0 p1 d1]")
}

func TestCountersThatAreNotZeroAreFound(t *testing.T) {
	c := &counters{
		pools:  pools.Status{Workers: []pools.WorkerStatus{{ID: "p0"}, {ID: "d0"}}},
		engine: map[string]simengine.Loads{"p0": {Served: 7}},
	}
	assert.Empty(t, c.left())
	assert.Empty(t, c.negative())
	c.pools.Workers[1].InFlight = 2
	c.rooms = 3
	c.engine["p0"] = simengine.Loads{Inflight: 1}
	assert.Empty(t, c.negative())
	for _, what := range []string{"d0 has 2 leases", "3 rooms are live", "engine p0 is at work"} {
		assert.Contains(t, c.left(), what)
	}
	c.pools.Workers[1].InFlight = -1
	assert.Equal(t, "d0 has -1 leases", c.negative())
}

func TestLeaksAreFound(t *testing.T) {
	before := Resources{Goroutines: 20, Files: 30, Heap: 1 << 20}
	f := func(after Resources, want string) {
		t.Helper()
		if want == "" {
			assert.Empty(t, leaked(before, after))
			return
		}
		assert.Contains(t, leaked(before, after), want)
	}
	f(Resources{30, 40, 17 << 20}, "")
	f(Resources{31, 40, 17 << 20}, "goroutines: 31, were 20")
	f(Resources{30, 41, 17 << 20}, "open files: 41, were 30")
	f(Resources{30, 40, 17<<20 + 1}, "bytes of heap")

	now, err := measure()
	require.NoError(t, err)
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() { <-stop; close(ended) }()
	then, err := measure()
	require.NoError(t, err)
	close(stop)
	<-ended
	assert.Greater(t, then.Goroutines, now.Goroutines)
	assert.Positive(t, now.Files)
}

func TestABookKeepsTheFirstViolationsOfEachInvariant(t *testing.T) {
	b := &book{seed: 7, start: time.Now()}
	for range maxViolations + 3 {
		b.report(Violation{Invariant: invariantLegs})
	}
	b.report(Violation{Invariant: invariantRooms, Request: "a", Engine: "p", Detail: "why"})
	list, more := b.all()
	assert.Len(t, list, maxViolations+1)
	assert.Equal(t, 3, more)
	assert.Regexp(t, `^seed 7, .*: a room belongs to one attempt: request a on p: why$`, list[maxViolations].String())
}
