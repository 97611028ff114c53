package registry

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// documents are workers as operators write them, and what they are.
var documents = []struct {
	text string
	want Spec
}{
	{`{"url":"http://w:1"}`, Spec{URL: "http://w:1", Role: pd.Regular}},
	{`{"url":"HTTPS://Worker.Example:443/"}`, Spec{URL: "https://worker.example:443", Role: pd.Regular}},
	{`{"url":"http://w:","worker_type":"decode"}`, Spec{URL: "http://w", Role: pd.Decode}},
	{`{"url":"http://[FD00::1]:1","worker_type":"decode"}`, Spec{URL: "http://[fd00::1]:1", Role: pd.Decode}},
	{`{"url":"http://[fe80::1%25eth0]:1","worker_type":"decode"}`, Spec{URL: "http://[fe80::1%25eth0]:1", Role: pd.Decode}},
	{`{"url":"http://w:1","worker_type":"prefill"}`, Spec{URL: "http://w:1", Role: pd.Prefill}},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":null}`, Spec{URL: "http://w:1", Role: pd.Prefill}},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":8998}`, Spec{URL: "http://w:1", Role: pd.Prefill, Bootstrap: "8998"}},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":"08998"}`, Spec{URL: "http://w:1", Role: pd.Prefill, Bootstrap: "8998"}},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":"None"}`, Spec{URL: "http://w:1", Role: pd.Prefill, Bootstrap: "none"}},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":9001,"bootstrap_host":"fabric-a"}`, Spec{URL: "http://w:1", Role: pd.Prefill, Bootstrap: "fabric-a:9001"}},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":9001,"bootstrap_host":"fd00::1"}`, Spec{URL: "http://w:1", Role: pd.Prefill, Bootstrap: "[fd00::1]:9001"}},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":"none","bootstrap_host":"[fd00::1]"}`, Spec{URL: "http://w:1", Role: pd.Prefill, Bootstrap: "[fd00::1]:none"}},
	{`{"url":"http://w:1","worker_type":"decode","bootstrap_port":null}`, Spec{URL: "http://w:1", Role: pd.Decode}},
	{
		`{"url":"http://w:1","model_id":"m","api_key":"secret","labels":{"a":"b"},"disable_health_check":true}`,
		Spec{URL: "http://w:1", Role: pd.Regular, Model: "m", APIKey: "secret", Labels: map[string]string{"a": "b"}, Unchecked: true},
	},
	{`{"url":"http://w:1","labels":{}}`, Spec{URL: "http://w:1", Role: pd.Regular}},
}

// mistakes are documents that are none, and why.
var mistakes = []struct{ text, want string }{
	{`{}`, "url: it is needed"},
	{`{"url":"w:1"}`, "url: want http://HOST:PORT or https://HOST:PORT"},
	{`{"url":"http://"}`, "url: want http://HOST:PORT or https://HOST:PORT"},
	{`{"url":"http://:1"}`, "url: the URL has no host"},
	{`{"url":"http://` + strings.Repeat("a", 258) + `:1"}`, "url: its host is too long to be one"},
	{`{"url":"http://w:0"}`, "url: want a port from 1 to 65535"},
	{`{"url":"http://w:65536"}`, "url: want a port from 1 to 65535"},
	{`{"url":"grpc://w:1"}`, "url: gRPC workers are not supported by this version: want http:// or https://"},
	{`{"url":"ftp://w:1"}`, "url: want a URL that starts with http:// or https://"},
	{`{"url":"http://secret:secret@w:1"}`, "url: a worker's URL must hold no credentials"},
	{`{"url":"http://w:1/v1?key=secret"}`, "url: a worker's URL must end after HOST:PORT"},
	{`{"url":"http://w:1","worker_type":"encode"}`, "worker_type: want prefill, decode or regular"},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":0}`, "bootstrap_port: want a number from 1 to 65535, or none"},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":8998.5}`, "bootstrap_port: want a number from 1 to 65535, or none"},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":""}`, "bootstrap_port: want a number from 1 to 65535, or none"},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":"a:1"}`, "bootstrap_port: want a number from 1 to 65535, or none"},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":{}}`, "bootstrap_port: want a number from 1 to 65535, or none"},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_host":"a"}`, "bootstrap_host: it needs a bootstrap_port"},
	{`{"url":"http://w:1","worker_type":"prefill","bootstrap_port":1,"bootstrap_host":"a:b"}`, `bootstrap_port: host "a:b" is not an IPv6 address`},
	{`{"url":"http://w:1","worker_type":"decode","bootstrap_port":8998}`, "bootstrap_port: only a prefill worker has a bootstrap server"},
	{`{"url":"http://w:1","api_key":"sec\r\nret"}`, "api_key: it holds a character that no header can carry"},
}

func TestADocumentIsAWorker(t *testing.T) {
	for _, c := range documents {
		var d Document
		require.NoError(t, json.Unmarshal([]byte(c.text), &d), c.text)
		spec, err := d.Spec()
		require.NoError(t, err, c.text)
		c.want.Priority, c.want.Cost = DefaultPriority, DefaultCost
		assert.Equal(t, c.want, spec, c.text)
	}
	var d Document
	require.NoError(t, json.Unmarshal([]byte(`{"url":"http://w:1","priority":0,"cost":0}`), &d))
	spec, err := d.Spec()
	require.NoError(t, err)
	assert.Equal(t, Spec{URL: "http://w:1", Role: pd.Regular}, spec, "nought is said, too")
}

func TestAMistakeInADocumentNamesItsField(t *testing.T) {
	for _, c := range mistakes {
		var d Document
		require.NoError(t, json.Unmarshal([]byte(c.text), &d), c.text)
		_, err := d.Spec()
		require.EqualError(t, err, c.want, c.text)
		var field *FieldError
		require.ErrorAs(t, err, &field)
		assert.True(t, strings.HasPrefix(c.want, field.Field+": "))
	}
}

// Whatever is written, what comes of it is written as the same again, is served or
// refused, and no error shows a key.
func FuzzDocument(f *testing.F) {
	for _, c := range documents {
		f.Add([]byte(c.text))
	}
	for _, c := range mistakes {
		f.Add([]byte(c.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var d Document
		if json.Unmarshal(text, &d) != nil {
			return
		}
		const secret = "Zq8-never-shown"
		d.APIKey += secret
		spec, err := d.Spec()
		if err != nil {
			assert.NotContains(t, err.Error(), secret)
			return
		}
		again := documentOf(&spec)
		written, err := json.Marshal(again)
		require.NoError(t, err)
		var read Document
		require.NoError(t, json.Unmarshal(written, &read))
		same, err := read.Spec()
		require.NoError(t, err, "%s", written)
		assert.Equal(t, spec, same)
		url, err := ParseURL(spec.URL)
		require.NoError(t, err)
		assert.Equal(t, spec.URL, url)
	})
}

func TestWhatIsSaidOfAWorkerHasBounds(t *testing.T) {
	long := strings.Repeat("x", maxLabels)
	for field, doc := range map[string]Document{
		"model_id": {URL: "http://a", ModelID: long},
		"labels":   {URL: "http://a", Labels: map[string]string{"a": long}},
	} {
		_, err := doc.Spec()
		require.ErrorContains(t, err, field+": want at most", field)
	}
	r := newRegistry(t, newSet(t), Options{})
	id, err := r.Add(pair()[0])
	require.NoError(t, err)
	require.ErrorContains(t, r.Update(id, Change{Labels: map[string]string{"a": long}}), "labels")
	require.ErrorContains(t, r.Update(id, Change{Model: &long}), "model_id")
}

func TestThereAreNoMoreWorkersThanThereMayBe(t *testing.T) {
	var reported []error
	r := newRegistry(t, newSet(t), Options{Report: func(_ string, _ pd.WorkerID, err error) { reported = append(reported, err) }})
	r.entries = make([]*entry, MaxWorkers-1)
	for i := range r.entries {
		r.entries[i] = &entry{}
	}
	r.Apply("file", pair())
	assert.Equal(t, []error{ErrFull}, reported)
	_, err := r.Add(Spec{URL: "http://other", Role: pd.Decode})
	require.ErrorIs(t, err, ErrFull)
}
