package kubernetes_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
)

func TestOptionsThatCannotBe(t *testing.T) {
	t.Parallel()
	f := func(change func(*kubernetes.Options), want string) {
		t.Helper()
		opt := pairs(0)
		change(&opt)
		_, err := kubernetes.New(&rest.Config{Host: "http://127.0.0.1:1"}, opt)
		require.ErrorContains(t, err, want)
	}
	f(func(o *kubernetes.Options) { *o = kubernetes.Options{} }, "kubernetes: want a selector")
	f(func(o *kubernetes.Options) { o.Selector = map[string]string{"app": "sglang"} }, "not both")
	f(func(o *kubernetes.Options) { o.PrefillSelector = map[string]string{"a b": "c"} }, "selector: ")
	f(func(o *kubernetes.Options) { o.DecodeSelector = map[string]string{"role": "a b"} }, "selector: ")
	f(func(o *kubernetes.Options) { o.Port = 65536 }, "port 65536: want 1 to 65535")
	f(func(o *kubernetes.Options) { o.Port = -1 }, "port -1: want 1 to 65535")
	f(func(o *kubernetes.Options) { o.Resync = -1 }, "must not be negative")

	_, err := kubernetes.New(&rest.Config{Host: "http://[::1"}, pairs(0))
	require.ErrorContains(t, err, "kubernetes: ")
	_, err = kubernetes.New(&rest.Config{Host: "https://x", TLSClientConfig: rest.TLSClientConfig{CAFile: "/no/such/file"}}, pairs(0))
	require.ErrorContains(t, err, "kubernetes: ")
}

func TestConfigIsReadFromAFile(t *testing.T) {
	write := func(name, server string) string {
		path := filepath.Join(t.TempDir(), name)
		text := `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
			"clusters": [{"name": "k", "cluster": {"server": "` + server + `"}}],
			"users": [{"name": "u", "user": {"token": "of-the-user"}}],
			"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]}`
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	given, named := write("given", "https://given:6443"), write("named", "https://named:6443")

	t.Setenv("KUBECONFIG", named)
	config, err := kubernetes.Config(given)
	require.NoError(t, err)
	assert.Equal(t, "https://given:6443", config.Host)
	assert.Equal(t, "of-the-user", config.BearerToken)
	config, err = kubernetes.Config("")
	require.NoError(t, err)
	assert.Equal(t, "https://named:6443", config.Host)

	_, err = kubernetes.Config(given + ".gone")
	require.ErrorIs(t, err, os.ErrNotExist)
	t.Setenv("KUBECONFIG", named+".gone")
	_, err = kubernetes.Config("")
	require.ErrorContains(t, err, named+".gone")
	broken := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))
	_, err = kubernetes.Config(broken)
	require.ErrorContains(t, err, broken)
}
