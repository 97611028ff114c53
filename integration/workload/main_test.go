// Package workload sends whole workloads through a whole router: real HTTP, real
// simulated engines with caches that forget, thousands of prompts. It shows what
// the policies are worth where it counts: which part of the prompts the engines did
// not have to compute, and how evenly they were loaded. README.md has the numbers.
package workload

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// long runs the workloads in full, for the table of README.md.
var long = flag.Bool("long", false, "run the workloads in full and with every policy: some minutes")

func TestMain(m *testing.M) {
	flag.Parse()
	if what := os.Getenv(churnEnv); what != "" {
		os.Exit(churnMain(what))
	}
	atOnce := "4" // they wait most of the time
	if *long {
		atOnce = "1" // else one would be another's load
	}
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m,
		// fasthttp's pool cleaner sleeps up to 10 s after its server has ended,
		// and its clock runs for the life of the process.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	)
}
