package redisstore

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/policy"
)

var _ policy.Store = (*Store)(nil)

func TestOpen(t *testing.T) {
	good := func(address string) {
		t.Helper()
		db, err := Open(address)
		require.NoError(t, err)
		require.NoError(t, db.Close())
	}
	good("redis://127.0.0.1:6379")
	good("redis://user:password@[::1]/1")
	good("rediss://store.example:6380/0")
	good("unix:///run/redis.sock?db=2")

	for _, address := range []string{
		"", "127.0.0.1:6379", "http://127.0.0.1", "redis://127.0.0.1/one", "redis://127.0.0.1?read_timeout=long",
		"redis://user:secret@host:port", "redis://user:sec%ret@host", "redis://user:sec/ret@host",
	} {
		_, err := Open(address)
		assert.EqualError(t, err, "redisstore: want redis://user:password@host:port/database, rediss://… or unix:///path?db=number")
	}
}

func TestAServerThatIsDownFailsAtOnce(t *testing.T) {
	defer goleak.VerifyNone(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	db, err := Open("redis://" + l.Addr().String())
	require.NoError(t, err)
	_, err = db.Store("m", pd.Prefill, time.Hour).Swap(t.Context(), "k", nil, []pd.WorkerID{"a"})
	require.ErrorContains(t, err, "redisstore: ")
	require.NoError(t, db.Close())
}

func TestAServerThatIsSilentFailsInTime(t *testing.T) {
	defer goleak.VerifyNone(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	require.NoError(t, err)
	defer l.Close()
	db, err := Open("redis://" + l.Addr().String())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = db.Store("m", pd.Prefill, time.Hour).Swap(ctx, "k", nil, []pd.WorkerID{"a"})
	require.Error(t, err)
	assert.Less(t, time.Since(start), 2*time.Second)
	require.NoError(t, db.Close())
}

// lists are workers and how they are stored.
var lists = []struct {
	ids    []pd.WorkerID
	stored string
}{
	{[]pd.WorkerID{"decode-0"}, "decode-0"},
	{[]pd.WorkerID{"decode-0", "decode-1"}, "decode-0,decode-1"},
	{[]pd.WorkerID{"a,b", "c%d"}, "a%2Cb,c%25d"},
	{[]pd.WorkerID{"%2C", ","}, "%252C,%2C"},
	{[]pd.WorkerID{"http://10.0.0.1:30000", "ü \x00"}, "http://10.0.0.1:30000,ü \x00"},
}

func TestWorkersAreStoredAsAListOfIDs(t *testing.T) {
	for _, tt := range lists {
		assert.Equal(t, tt.stored, join(tt.ids))
		ids, err := split(tt.stored)
		require.NoError(t, err)
		assert.Equal(t, tt.ids, ids)
	}
	assert.Empty(t, join(nil))
	for _, stored := range []string{"", ",", "a,", ",a", "a,,b"} {
		_, err := split(stored)
		assert.EqualError(t, err, "redisstore: what is stored is no list of workers", "%q", stored)
	}
}

func FuzzWorkersComeBackAsTheyWere(f *testing.F) {
	for _, tt := range lists {
		f.Add(string(tt.ids[0]), string(tt.ids[len(tt.ids)-1]))
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == "" || b == "" {
			return // no worker has such an id
		}
		ids := []pd.WorkerID{pd.WorkerID(a), pd.WorkerID(b)}
		got, err := split(join(ids))
		require.NoError(t, err)
		assert.True(t, slices.Equal(ids, got), "%q became %q", ids, got)
	})
}
