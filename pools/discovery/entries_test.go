package discovery_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/pools/registry"
)

// secret stands in no error.
const secret = "sk-0451-Secret"

// keys are files that hold keys.
func keys(path string) ([]byte, error) {
	switch path {
	case "keys/prefill":
		return []byte(secret + "\n"), nil
	case "keys/empty":
		return []byte(" \n"), nil
	case "keys/two":
		return []byte(secret + "\n" + secret + "\n"), nil
	}
	return nil, os.ErrNotExist
}

const everyField = `
# Two pools.
workers:
  - url: http://10.0.0.1:30000/
    worker_type: prefill
    bootstrap_port: 8998
    model_id: llama-3-8b
    api_key: ` + secret + `
    priority: 70
    cost: 1.5
    labels: {zone: a, rack: "7"}
    disable_health_check: true
  - url: https://[fd00::2]:30001
    worker_type: decode
    api_key_file: keys/prefill
`

func TestAFileHasTheFieldsOfTheGateway(t *testing.T) {
	specs, err := discovery.Parse([]byte(everyField), keys)
	require.NoError(t, err)
	assert.Equal(t, []registry.Spec{
		{
			URL: "http://10.0.0.1:30000", Role: pd.Prefill, Bootstrap: "8998", Model: "llama-3-8b", APIKey: secret,
			Priority: 70, Cost: 1.5, Labels: map[string]string{"zone": "a", "rack": "7"}, Unchecked: true,
		},
		{URL: "https://[fd00::2]:30001", Role: pd.Decode, APIKey: secret, Priority: 50, Cost: 1},
	}, specs)
}

func TestAFileMayBeJSON(t *testing.T) {
	specs, err := discovery.Parse([]byte("{\n\t\"workers\": [\n\t\t{\"url\": \"http://a:1\", \"bootstrap_port\": null}\n\t]\n}\n"), keys)
	require.NoError(t, err)
	assert.Equal(t, []registry.Spec{{URL: "http://a:1", Role: pd.Regular, Priority: 50, Cost: 1}}, specs)
}

func TestNoWorkersAreSaidInWords(t *testing.T) {
	for _, text := range []string{"workers: []", "---\nworkers: []\n...\n", `{"workers": []}`} {
		specs, err := discovery.Parse([]byte(text), keys)
		require.NoError(t, err, text)
		assert.Empty(t, specs, text)
	}
}

func TestWhereTheBootstrapServerIs(t *testing.T) {
	f := func(fields, want string) {
		t.Helper()
		specs, err := discovery.Parse([]byte("workers: [{url: 'http://a:1', worker_type: prefill, "+fields+"}]"), keys)
		require.NoError(t, err, fields)
		assert.Equal(t, want, specs[0].Bootstrap, fields)
	}
	f(``, "")
	f(`bootstrap_port: null`, "")
	f(`bootstrap_port: 8998`, "8998")
	f(`bootstrap_port: "8998"`, "8998")
	f(`bootstrap_port: none`, "none")
	f(`bootstrap_port: 8998, bootstrap_host: prefill-0.fast`, "prefill-0.fast:8998")
	f(`bootstrap_port: none, bootstrap_host: 10.1.0.1`, "10.1.0.1:none")
	f(`bootstrap_port: 8998, bootstrap_host: "fd00::1"`, "[fd00::1]:8998")
	f(`bootstrap_port: 8998, bootstrap_host: "[fd00::1]"`, "[fd00::1]:8998")
}

// broken are texts of files with what is wrong with them.
var broken = []struct{ text, want string }{
	{"", "is empty; that there are no workers is written as workers: []"},
	{" \n\t\n", "is empty; that there are no workers is written as workers: []"},
	{"# soon\n", "workers: is missing; that there are none is written as workers: []"},
	{"workers:\n", "workers: is missing; that there are none is written as workers: []"},
	{"{}", "workers: is missing; that there are none is written as workers: []"},
	{"[]", "want names with values"},
	{"workers: {}", "workers: want a list"},
	{"workers: [7]", "workers[0]: want names with values"},
	{"workers: [null]", "workers[0].url: it is needed"},
	{"worker: []", "worker: unknown field"},
	{"Workers: []", "Workers: unknown field"},
	{"workers: [{url: 'http://a:1'}, {url: 'http://b:1', api-key: " + secret + "}]", "workers[1].api-key: unknown field"},
	{"workers: [{url: 'http://a:1', " + secret + "}]", "workers[0].(a name with other characters): unknown field"},

	{"workers: [{worker_type: decode}]", "workers[0].url: it is needed"},
	{"workers: [{url: '10.0.0.1:30000'}]", "workers[0].url: want http://HOST:PORT or https://HOST:PORT"},
	{"workers: [{url: 'http://u:" + secret + "@a:1'}]", "workers[0].url: a worker's URL must hold no credentials"},
	{"workers: [{url: 'grpc://a:1'}]", "workers[0].url: gRPC workers are not supported by this version: want http:// or https://"},
	{"workers: [{url: 'http://a:1'}, {url: 'http://b:1'}, {url: 'http://a:1/'}]", "workers[2].url: is that of workers[0]"},
	{"workers: [{url: 'http://a:1', worker_type: Prefill}]", "workers[0].worker_type: want prefill, decode or regular"},
	{"workers: [{url: 'http://a:1', bootstrap_port: 0}]", "workers[0].bootstrap_port: want a number from 1 to 65535, or none"},
	{"workers: [{url: 'http://a:1', bootstrap_port: 65536}]", "workers[0].bootstrap_port: want a number from 1 to 65535, or none"},
	{"workers: [{url: 'http://a:1', bootstrap_port: 1.5}]", "workers[0].bootstrap_port: want a number from 1 to 65535, or none"},
	{"workers: [{url: 'http://a:1', bootstrap_port: ''}]", "workers[0].bootstrap_port: want a number from 1 to 65535, or none"},
	{"workers: [{url: 'http://a:1', bootstrap_port: [8998]}]", "workers[0].bootstrap_port: want a number from 1 to 65535, or none"},
	{"workers: [{url: 'http://a:1', bootstrap_port: 'b:8998'}]", "workers[0].bootstrap_port: want a number from 1 to 65535, or none"},
	{"workers: [{url: 'http://a:1', bootstrap_host: b}]", "workers[0].bootstrap_host: it needs a bootstrap_port"},
	{"workers: [{url: 'http://a:1', worker_type: decode, bootstrap_port: 1}]", "workers[0].bootstrap_port: only a prefill worker has a bootstrap server"},
	{"workers: [{url: 'http://a:1', priority: high}]", "workers[0].priority: want a whole number"},
	{"workers: [{url: 'http://a:1', priority: 1.5}]", "workers[0].priority: want a whole number"},
	{"workers: [{url: 'http://a:1', cost: [1]}]", "workers[0].cost: want a number"},
	{"workers: [{url: 'http://a:1', cost: .inf}]", "not valid YAML"},
	{"workers: [{url: 'http://a:1', labels: [a]}]", "workers[0].labels: want names with values"},
	{"workers: [{url: 'http://a:1', labels: {canary: yes}}]", "workers[0].labels.canary: want a text, in quotes if it looks like something else"},
	{"workers: [{url: 'http://a:1', model_id: 7}]", "workers[0].model_id: want a text, in quotes if it looks like something else"},
	{"workers: [{url: 'http://a:1', disable_health_check: 1}]", "workers[0].disable_health_check: want true or false"},

	{"workers: [{url: 'http://a:1', api_key: 0451}]", "workers[0].api_key: want a text, in quotes if it looks like something else"},
	{"workers: [{url: 'http://a:1', api_key: {" + secret + "}}]", "workers[0].api_key: want a text, in quotes if it looks like something else"},
	{"workers: [{url: 'http://a:1', api_key: \"" + secret + "\\r\\nX: y\"}]", "workers[0].api_key: it holds a character that no header can carry"},
	{"workers: [{url: 'http://a:1', api_key: " + secret + ", api_key_file: keys/prefill}]", "workers[0].api_key_file: is given beside api_key"},
	{"workers: [{url: 'http://a:1', api_key_file: keys/gone}]", "workers[0].api_key_file: file does not exist"},
	{"workers: [{url: 'http://a:1', api_key_file: keys/empty}]", "workers[0].api_key_file: holds no key"},
	{"workers: [{url: 'http://a:1', api_key_file: keys/two}]", "workers[0].api_key: it holds a character that no header can carry"},

	{"workers:\n  - url: http://a:1\n    url: http://b:1\n", "line 3: a name is given twice"},
	{"workers:\n  - url: http://a:1\n\tworker_type: decode\n", "line 3: not valid YAML: found a tab character that violates indentation"},
	{"workers:\n  - url: http://a:1\n    worker_type: \"dec", "line 3: not valid YAML: found unexpected end of stream"},
	{"workers:\n  - url: http://a:1\n    api_key: *" + secret + "\n", "not valid YAML"},
	{"workers:\n  - url: http://a:1\n    api_key: !!int " + secret + "\n", "not valid YAML"},
	{"workers:\n  - url: http://a:1\n    api_key: {{" + secret + "}}\n", "not valid YAML"},
	{"workers:\n  - url: http://a:1\n    api_key: ? {'line 3: found " + secret + "'}\n", "line 3: not valid YAML: mapping keys are not allowed in this context"},
	{"workers:\n  - url: http://a:1\n    api_key: {? {'line 3: found " + secret + "'}}\n", "not valid YAML"},
	{"workers: []\n---\nworkers: [{url: 'http://a:1'}]\n", "line 3: a second YAML document starts; want one"},
	{"%YAML 1.1\n---\nworkers: []\n...\n# end\n--- {workers: []}\n", "line 6: a second YAML document starts; want one"},
}

func TestErrorsNameTheFieldAndShowNoValue(t *testing.T) {
	for _, c := range broken {
		specs, err := discovery.Parse([]byte(c.text), keys)
		assert.Nil(t, specs, c.text)
		assert.EqualError(t, err, c.want, c.text)
	}
}

// No text makes the parser panic, none that it refuses has workers, and no error
// shows a key, whatever stands around it.
func FuzzWorkersFile(f *testing.F) {
	for _, c := range broken {
		before, after, _ := strings.Cut(c.text, "api_key: "+secret)
		f.Add(before, after)
	}
	before, after, _ := strings.Cut(everyField, "api_key: "+secret)
	f.Add(before, after)
	f.Fuzz(func(t *testing.T, before, after string) {
		for _, text := range []string{before + after, before + "api_key: " + secret + after} {
			specs, err := discovery.Parse([]byte(text), func(string) ([]byte, error) { return nil, errors.New("is not there") })
			if err != nil {
				assert.Nil(t, specs)
				if !strings.Contains(before, "bootstrap_host") { // which may be shown, and a key within is none
					assert.NotContains(t, err.Error(), secret)
				}
			}
			urls := map[string]bool{}
			for _, s := range specs {
				again, err := registry.ParseURL(s.URL)
				require.NoError(t, err)
				assert.Equal(t, s.URL, again)
				assert.False(t, urls[s.URL], "a worker is there once")
				urls[s.URL] = true
			}
		}
	})
}
