package workload

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/load/proc"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/kvindex"
	"github.com/tandem-pd/tandem/pools/policy"
)

// churnEnv has this program do the work of TestMemoryStaysFlat and nothing else,
// in a process whose memory is its own. Its value is "policy prompts workers budget".
const churnEnv = "TANDEM_WORKLOAD_CHURN"

// manualKey is what a key costs that is remembered, in bytes: it is some 200, and
// the garbage collector lets about as much lie about.
const manualKey = 400

// Workers come and go and no prompt comes twice: what the router holds is what its
// policy may, and is no more at the end than after a tenth of it all.
func TestMemoryStaysFlat(t *testing.T) {
	t.Parallel()
	const aside = 150 << 20 // beside what the policy may keep
	prompts, workers, index, keys := 1500, 30, int64(1<<18), int64(1<<7)
	slack := 16.0 * (1 << 20) // a small heap is not as steady as a large one
	if *long {
		prompts, workers, index, keys, slack = 5_000_000, 10_000, kvindex.DefaultMemory, 1<<18, 0
	}
	// From which tenth on it is flat.
	f := func(policy string, budget int64, from int) {
		t.Run(policy, func(t *testing.T) {
			rss := churn(t, policy, prompts, workers, budget)
			early, late := rss[from], rss[len(rss)-1]
			t.Logf("%-18s %d MiB before, %d MiB after a tenth, %d MiB at the end", policy, rss[0]>>20, rss[1]>>20, late>>20)
			assert.LessOrEqual(t, slices.Max(rss), budget+aside)
			assert.LessOrEqual(t, float64(late), 1.1*float64(early)+slack)
		})
	}
	f("cache_aware", index, 1)
	f("manual", manualKey*keys, 6) // a map whose keys come and go grows once more when it has been full for a while
	if *long {
		f("prefix_hash", 0, 1)
		f("consistent_hashing", 0, 1)
	}
}

// churn runs this program as a child and returns its resident memory in bytes:
// before the first prompt, and after each tenth of them.
func churn(t *testing.T, policy string, prompts, workers int, budget int64) (rss []int64) {
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %d", churnEnv, policy, prompts, workers, budget))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var now int64
		_, err := fmt.Sscanf(lines.Text(), "rss %d", &now)
		require.NoError(t, err, lines.Text())
		rss = append(rss, now)
	}
	require.NoError(t, child.Wait())
	require.Len(t, rss, 11)
	return rss
}

// churnMain is the child.
func churnMain(what string) int {
	if err := churnAlone(what, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func churnAlone(what string, out io.Writer) error {
	var name string
	var prompts, workers int
	var budget int64
	if _, err := fmt.Sscanf(what, "%s %d %d %d", &name, &prompts, &workers, &budget); err != nil {
		return err
	}
	report := func() error {
		m, err := proc.ReadMemory(os.Getpid())
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, "rss", m.RSS)
		return err
	}
	if err := report(); err != nil {
		return err
	}
	c, err := newChurning(name, budget)
	if err != nil {
		return err
	}
	defer c.set.Close()
	for i := range prompts {
		if err := c.request(i); err != nil {
			return err
		}
		if i%(prompts/workers) == 0 {
			if err := c.replace(); err != nil {
				return err
			}
		}
		if (i+1)%(prompts/10) == 0 {
			if err := report(); err != nil {
				return err
			}
		}
	}
	return nil
}

// churning is a set of pairs whose prefills come and go.
type churning struct {
	set   *pools.Set
	r     *rand.Rand
	live  []pd.WorkerID // of the prefills
	born  int
	plans []*pd.Plan // those in flight
	text  string
}

func newChurning(name string, budget int64) (*churning, error) {
	const live, decodes = 64, 8
	c := &churning{r: rand.New(rand.NewPCG(8, 1)), text: strings.Repeat("and so on ", 100)}
	if name == "cache_aware" {
		c.text = strings.Repeat(c.text, 10) // the others do not read so far
	}
	var err error
	c.set, err = pools.New(nil, pools.Options{Policies: func(string) (pools.Policies, error) {
		prefill, err := within(name, budget)
		return pools.Policies{Prefill: prefill, Decode: policy.PowerOfTwo{}}, err
	}})
	if err != nil {
		return nil, err
	}
	for i := range decodes {
		id := pd.WorkerID(fmt.Sprintf("decode-%d", i))
		if err := c.set.Add(&pd.Worker{ID: id, Role: pd.Decode, URL: "http://" + string(id)}); err != nil {
			return nil, err
		}
	}
	for range live {
		id, err := c.add()
		if err != nil {
			return nil, err
		}
		c.live = append(c.live, id)
	}
	return c, nil
}

// within is a policy that may keep so many bytes.
func within(name string, budget int64) (pools.Policy, error) {
	switch name {
	case "cache_aware":
		return policy.NewCacheAware(policy.CacheAwareOptions{Memory: budget}), nil
	case "manual":
		return policy.NewManual(context.Background(), policy.ManualOptions{MaxKeys: int(budget / manualKey)})
	default:
		return policy.ByName(name)
	}
}

// add adds a prefill that nobody has seen before, with a cache that no budget is
// large enough for.
func (c *churning) add() (pd.WorkerID, error) {
	id := pd.WorkerID(fmt.Sprintf("prefill-%d", c.born))
	c.born++
	return id, c.set.Add(&pd.Worker{ID: id, Role: pd.Prefill, URL: "http://" + string(id), KVTokens: 8 << 20})
}

// replace has a prefill go and another come. Half of them stay, and use what memory
// there is.
func (c *churning) replace() (err error) {
	i := c.r.IntN(len(c.live) / 2)
	if err := c.set.Remove(c.live[i]); err != nil {
		return err
	}
	c.live[i], err = c.add()
	return err
}

// request plans prompt i, which differs from all others from its first byte on, and
// has a key of its own. Some are in flight all the time.
func (c *churning) request(i int) error {
	const inFlight = 256
	req, err := pd.NewRequest(pd.Generate, fmt.Appendf(nil, `{"text":"%08d %s"}`, i, c.text))
	if err != nil {
		return err
	}
	req.Header = http.Header{"X-Smg-Routing-Key": {fmt.Sprintf("session-%d", i)}}
	plans, err := c.set.Plan(context.Background(), req, 1, nil)
	if err != nil {
		return err
	}
	c.plans = append(c.plans, plans[0])
	if len(c.plans) > inFlight {
		c.plans[0].End(pd.Success, pd.Success)
		c.plans = c.plans[1:]
	}
	return nil
}
