package bootstrap

import (
	"math"
	"math/rand/v2"
	"sync"
)

// Room names one transfer of KV from a prefill to a decode worker. It is in
// [1, 2^63-1]: decode hangs on 0 and prefill dies of a negative number.
type Room uint64

const maxRoom = math.MaxInt64

// Rooms is the set of live rooms. The zero value is ready; all methods may be
// called from any goroutine.
type Rooms struct {
	mu   sync.Mutex
	live map[Room]struct{}
}

// Take gives out n fresh rooms, uniform and unused among the live ones, which
// stay live until Release. If rank is in [0, dpSize), every room is congruent
// to rank modulo dpSize, which is how a prefill worker with data-parallel ranks
// chooses one; any other rank, such as -1, leaves the choice open.
func (r *Rooms) Take(n, dpSize, rank int) []Room {
	draw := anyRoom
	if rank >= 0 && rank < dpSize {
		draw = func() Room { return roomOfRank(uint64(dpSize), uint64(rank)) }
	}
	rooms := make([]Room, 0, n)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live == nil {
		r.live = make(map[Room]struct{})
	}
	for len(rooms) < n {
		room := draw()
		if _, taken := r.live[room]; taken || room == 0 {
			continue
		}
		r.live[room] = struct{}{}
		rooms = append(rooms, room)
	}
	return rooms
}

// Release ends the life of rooms. One that is not live is ignored.
func (r *Rooms) Release(rooms []Room) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, room := range rooms {
		delete(r.live, room)
	}
}

// Live is the number of live rooms.
func (r *Rooms) Live() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.live)
}

// anyRoom is uniform in [0, maxRoom]. The generator behind rand's functions is
// ChaCha8 seeded by the operating system, so nobody can guess a live room, and
// two routers in front of the same workers do not meet in one.
func anyRoom() Room { return Room(rand.Uint64() >> 1) }

// roomOfRank is uniform among the multiples of size, plus rank, in [0, maxRoom].
func roomOfRank(size, rank uint64) Room {
	return Room(rand.Uint64N((maxRoom-rank)/size+1)*size + rank)
}
