package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/registry"
)

func TestFlagsOfDiscovery(t *testing.T) {
	found := parseOK(t, onePair+`--worker-file w.yaml --state-file s.json --dns-interval-secs 7
		--prefill-dns http://prefill.svc:30000 8998 --decode-dns http://_http._tcp.decode.svc
		--service-discovery --prefill-selector app=sgl role=prefill --decode-selector app=sgl,role=decode
		--service-discovery-port 30000 --service-discovery-namespace ns --kubeconfig k --service-discovery-interval-secs 9`).found
	assert.Equal(t, "w.yaml", found.file)
	require.Len(t, found.dns, 2)
	assert.Equal(t, []any{pd.Prefill, "8998", pd.Decode}, []any{found.dns[0].Role, found.dns[0].Bootstrap, found.dns[1].Role})
	assert.Equal(t, map[string]string{"app": "sgl", "role": "prefill"}, found.pods.PrefillSelector)
	assert.Equal(t, map[string]string{"app": "sgl", "role": "decode"}, found.pods.DecodeSelector)
	assert.Equal(t, []any{30000, "ns", true, "k"}, []any{found.pods.Port, found.pods.Namespace, found.kubernetes, found.kubeconfig})
}

func TestNoFlagTurnsAnotherSourceOn(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"--service-discovery", "--prefill-selector or --decode-selector is needed"},
		{"--service-discovery --selector a=b --prefill-selector a=b", "--selector: whole engines have no place among pairs"},
		{"--service-discovery --prefill-selector a", "want key=value"},
		{"--dp-aware --disable-health-check", "--dp-aware: engines are asked"},
		{"--decode-dns nonsense", "--decode-dns"},
	} {
		_, err := parse(t, onePair+c.line)
		assert.ErrorContains(t, err, c.want, c.line)
	}
	cfg := parseOK(t, onePair+"--prefill-selector a=b --service-discovery-port 1")
	assert.False(t, cfg.found.any())
	assert.Equal(t, []string{
		"--prefill-selector has no effect without --service-discovery",
		"--service-discovery-port has no effect without --service-discovery",
	}, cfg.warnings)
}

func TestABrokenFileOfWorkersIsSaidAtTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	require.NoError(t, os.WriteFile(path, []byte("workers:\n  - url: nonsense\n"), 0o600))
	_, err := build(parseOK(t, onePair+"--worker-file "+path), zerolog.Nop(), nil)
	require.ErrorContains(t, err, "url")
}

func TestABrokenStateFileIsSaidAtTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"version":1,"wor`), 0o600))
	_, err := build(parseOK(t, onePair+"--state-file "+path), zerolog.Nop(), nil)
	require.ErrorContains(t, err, path)
}

// listed is a source that says what it has once.
type listed []registry.Spec

func (listed) Name() string { return "listed" }

func (l listed) Run(_ context.Context, apply func([]registry.Spec)) error {
	apply(l)
	return nil
}

func TestWorkersThatWereFoundGetTheRoutersKey(t *testing.T) {
	f := func(name, key, all string, want ...string) {
		t.Helper()
		var got []string
		source := &keyed{listed{{URL: "http://a"}, {URL: "http://b", APIKey: "own"}}, key, all}
		require.NoError(t, source.Run(t.Context(), func(specs []registry.Spec) {
			for _, s := range specs {
				got = append(got, s.APIKey)
			}
		}), name)
		assert.Equal(t, want, got, name)
	}
	f("no key", "", "", "", "own")
	f("the router's", "k", "", "k", "own")
	f("that of all workers, which the registry gives", "k", "w", "", "own")
}

func TestWorkersMayComeLater(t *testing.T) {
	cfg := parseOK(t, "--pd-disaggregation")
	assert.Len(t, cfg.warnings, 2)
	assert.Contains(t, cfg.warnings[0], "POST /workers")
	assert.Empty(t, parseOK(t, "--pd-disaggregation --worker-file w.yaml").warnings, "where they are looked for")
	_, err := parse(t, "--mini-lb")
	require.ErrorContains(t, err, "--prefill: at least one prefill worker is needed")
}

// The command line in the example is one that a router starts with.
func TestTheExampleForKubernetesHasACommandLineThatIsGood(t *testing.T) {
	text, err := os.ReadFile("../../examples/kubernetes/tandem.yaml")
	require.NoError(t, err)
	docs := strings.Split(string(text), "\n---\n")
	var deployment struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Args []string `json:"args"`
					} `json:"containers"`
				} `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(docs[len(docs)-1]), &deployment))
	require.Len(t, deployment.Spec.Template.Spec.Containers, 1)
	cfg := parseOK(t, strings.Join(deployment.Spec.Template.Spec.Containers[0].Args, " "))
	assert.Empty(t, cfg.warnings)
	assert.True(t, cfg.found.kubernetes)
	assert.Equal(t, map[string]string{"app": "sglang", "role": "decode"}, cfg.found.pods.DecodeSelector)
	assert.Equal(t, "cache_aware", cfg.prefillPolicy)
	assert.Equal(t, "power_of_two", cfg.decodePolicy)
}
