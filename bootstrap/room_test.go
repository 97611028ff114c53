package bootstrap

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRoomsAreUniqueWhileLive(t *testing.T) {
	const takers, calls, batch = 8, 1250, 10 // 100k rooms
	var rooms Rooms
	taken := make([][]Room, takers)
	var wg sync.WaitGroup
	for i := range takers {
		wg.Go(func() {
			for range calls {
				taken[i] = append(taken[i], rooms.Take(batch, 0, -1)...)
			}
		})
	}
	wg.Wait()

	seen := make(map[Room]struct{}, takers*calls*batch)
	for _, rs := range taken {
		for _, r := range rs {
			_, twice := seen[r]
			require.False(t, twice, "room %d", r)
			seen[r] = struct{}{}
		}
	}
	assert.Len(t, seen, takers*calls*batch)
	assert.Equal(t, len(seen), rooms.Live())

	for _, rs := range taken {
		wg.Go(func() { rooms.Release(rs) })
	}
	wg.Wait()
	assert.Zero(t, rooms.Live())
}

func TestALiveRoomIsNotTakenAgain(t *testing.T) {
	// With as many ranks as there are rooms, a rank has only one room (and rank
	// 0 that and the forbidden 0), so every draw meets the live one.
	var rooms Rooms
	const size = math.MaxInt64 / 2
	first := rooms.Take(2, size, 1) // 1, size+1 and 2*size+1
	third := rooms.Take(1, size, 1)
	assert.NotContains(t, first, third[0])
	assert.ElementsMatch(t, []Room{1, size + 1, 2*size + 1}, append(first, third...))

	rooms.Release(first[:1])
	assert.Equal(t, first[:1], rooms.Take(1, size, 1), "the only room that is free")
}

func TestRoomRange(t *testing.T) {
	var rooms Rooms
	var high, low bool
	for _, r := range rooms.Take(10_000, 0, -1) {
		require.NotZero(t, r)
		require.LessOrEqual(t, uint64(r), uint64(math.MaxInt64))
		high = high || r > math.MaxInt64/2
		low = low || r < math.MaxInt64/2
	}
	assert.True(t, high && low, "both halves of the range are used")
}

func TestRoomZeroIsNeverGivenOut(t *testing.T) {
	var rooms Rooms
	// Rank 0 of so many ranks has two rooms: 0 and the largest.
	assert.Equal(t, []Room{math.MaxInt64}, rooms.Take(1, math.MaxInt64, 0))
}

func TestRoomFollowsTheRank(t *testing.T) {
	for _, size := range []int{1, 2, 3, 7, 8, 64} {
		for rank := range size {
			var rooms Rooms
			for _, r := range rooms.Take(100, size, rank) {
				require.NotZero(t, r)
				require.LessOrEqual(t, uint64(r), uint64(math.MaxInt64))
				require.Equal(t, uint64(rank), uint64(r)%uint64(size), "size %d", size)
			}
		}
	}
}

func TestRankOutsideTheSizeLeavesTheChoiceOpen(t *testing.T) {
	for _, c := range []struct{ size, rank int }{{0, -1}, {4, -1}, {0, 3}, {4, 4}, {-1, 0}} {
		var rooms Rooms
		residues := map[Room]bool{}
		for _, r := range rooms.Take(200, c.size, c.rank) {
			residues[r%4] = true
		}
		assert.Len(t, residues, 4, "size %d, rank %d", c.size, c.rank)
	}
}

func TestReleaseIgnoresWhatIsNotLive(t *testing.T) {
	var rooms Rooms
	rooms.Release([]Room{1, 2})
	a, b := rooms.Take(1, 0, -1), rooms.Take(1, 0, -1)
	rooms.Release(a)
	rooms.Release(a)
	assert.Equal(t, 1, rooms.Live())
	rooms.Release(b)
	assert.Zero(t, rooms.Live())
	assert.Empty(t, rooms.Take(0, 0, -1))
}

func BenchmarkRooms(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) {
			var rooms Rooms
			rooms.Take(4096, 0, -1) // what a busy router holds
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					rooms.Release(rooms.Take(n, 0, -1))
				}
			})
		})
	}
}
