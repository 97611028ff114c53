package main

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
	"github.com/tandem-pd/tandem/pools/policy"
	"github.com/tandem-pd/tandem/pools/registry"
)

// allWell is a transport to workers that are well.
type allWell struct{}

func (allWell) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestWorkersAreStillLookedAtBehindAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes, panics := 0, 0
		monitor := health.New(health.Options{Transport: allWell{}, Probed: func(*pd.Worker, time.Duration, error) {
			if probes++; probes == 1 {
				panic("boom")
			}
		}})
		set, err := pools.New(
			[]*pd.Worker{{ID: "p", Role: pd.Prefill, URL: "http://p"}, {ID: "d", Role: pd.Decode, URL: "http://d"}},
			pools.Options{Policies: pools.Share(policy.Random{}, policy.Random{}), Suspect: monitor.Suspect},
		)
		require.NoError(t, err)
		reg, err := registry.New(set, registry.Options{})
		require.NoError(t, err)
		f := &fleet{set: set, registry: reg, monitor: monitor}
		stop := f.run(zerolog.Nop(), func(any, []byte) { panics++ })
		time.Sleep(10 * time.Second)
		stop()
		assert.Equal(t, 1, panics)
		assert.True(t, set.Serves("p"))
		assert.True(t, set.Serves("d"))
	})
}
