package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// kept are the specs that a new router has from a state file.
func kept(t *testing.T, path string) []Spec {
	t.Helper()
	all, err := readState(path)
	require.NoError(t, err)
	var out []Spec
	for _, s := range all {
		out = append(out, s.spec)
	}
	return out
}

func TestWhatTheAPIHasAddedIsThereAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	r := newRegistry(t, newSet(t), Options{StateFile: path})
	assert.NoFileExists(t, path, "nothing has been added")
	full := Spec{
		URL: "http://p:1", Role: pd.Prefill, Bootstrap: "[fd00::1]:none", Model: "m", APIKey: "secret", Priority: 3, Cost: 0.5,
		Labels: map[string]string{"zone": "a"}, Unchecked: true,
	}
	_, err := r.Add(full)
	require.NoError(t, err)
	_, err = r.Add(pair()[1])
	require.NoError(t, err)
	r.Apply("file", []Spec{{URL: "http://f:1", Role: pd.Decode}})
	assert.Equal(t, []Spec{full, pair()[1]}, kept(t, path), "and nothing of what sources name")

	priority := 4
	require.NoError(t, r.Update(decodeID, Change{Priority: &priority}))
	require.NoError(t, r.Remove(prefillID))
	set := newSet(t)
	again := newRegistry(t, set, Options{StateFile: path})
	assert.Equal(t, map[string]pools.State{"http://d:1": pools.Starting}, urls(set))
	v := view(t, again, decodeID)
	assert.Equal(t, []any{"api", 4, decodeID}, []any{v.Source, v.Worker.Priority, v.ID})
	require.NoError(t, again.Remove(decodeID))
	assert.Empty(t, kept(t, path))
}

func TestTheStateFileIsForItsOwnerAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"version":1,"workers":[]}`), 0o644))
	require.NoError(t, os.WriteFile(path+".new", []byte(`half of`), 0o644), "a router was killed")
	r := newRegistry(t, newSet(t), Options{StateFile: path})
	_, err := r.Add(pair()[0])
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, files, 1, "nothing is left beside it")
}

// Whoever reads the file while workers are added sees it whole at every instant.
func TestTheStateFileIsWholeAtAllTimes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	r := newRegistry(t, newSet(t), Options{StateFile: path})
	var adding, reading sync.WaitGroup
	done := make(chan struct{})
	reading.Go(func() {
		for {
			_, err := readState(path)
			assert.NoError(t, err)
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for i := range 4 {
		adding.Go(func() {
			for n := range 10 {
				_, err := r.Add(Spec{URL: fmt.Sprintf("http://w%d:%d", i, n+1), Role: pd.Decode})
				assert.NoError(t, err)
			}
		})
	}
	adding.Wait()
	close(done)
	reading.Wait()
	assert.Len(t, kept(t, path), 40)
}

func TestAStateFileThatCannotBeReadIsNoEmptyOne(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "state.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := New(newSet(t), Options{StateFile: path})
		require.Error(t, err)
		assert.Equal(t, "registry: "+path+want, err.Error())
		assert.NotContains(t, err.Error(), "secret")
	}
	f(``, " is no state file of this version")
	f(`{"version":1,"workers":[{"url":"http://d:1","api_key":"secret`, " is no state file of this version")
	f(`{"version":2,"workers":[]}`, " is no state file of this version")
	f(`{"version":1,"workers":[{"url":"http://x:secret@d:1","api_key":"secret"}]}`, ": worker 0: url: a worker's URL must hold no credentials")
	f(`{"version":1,"workers":[{"url":"http://d:1","api_key":"sec\nret"}]}`, ": worker 0: api_key: it holds a character that no header can carry")
	f(`{"version":1,"workers":[{"url":"http://d:1","worker_type":"decode","switched_to":"secret"}]}`, ": worker 0: switched_to: want prefill or decode")

	_, err := New(newSet(t), Options{StateFile: t.TempDir()})
	require.ErrorContains(t, err, "is not a regular file")
	_, err = New(newSet(t), Options{StateFile: os.DevNull})
	assert.ErrorContains(t, err, "is not a regular file")
}

func TestAStateFileThatCannotBeWrittenIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gone", "state.json")
	var reported []string
	set := newSet(t)
	r := newRegistry(t, set, Options{StateFile: path, Report: func(source string, _ pd.WorkerID, err error) {
		reported = append(reported, source+": "+err.Error())
	}})
	spec := pair()[1]
	spec.APIKey = "secret"
	_, err := r.Add(spec)
	require.NoError(t, err, "the worker is there all the same")
	require.Len(t, reported, 1)
	assert.Contains(t, reported[0], "api: ")
	assert.NotContains(t, strings.Join(reported, ""), "secret")
	assert.Equal(t, reported[0], "api: "+r.Troubles()["api"].Err, "and shown")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	require.NoError(t, r.Drain(decodeID))
	_, err = r.Add(pair()[0])
	require.NoError(t, err)
	assert.Len(t, kept(t, path), 2, "the next change writes all of it")
	assert.Empty(t, r.Troubles())
}

// A disk may be slow: only those who have changed something wait for it.
func TestTheFleetCanBeLookedAtWhileTheStateFileIsWritten(t *testing.T) {
	var r *Registry
	seen := make(chan int, 1)
	r = newRegistry(t, newSet(t), Options{
		StateFile: filepath.Join(t.TempDir(), "missing", "state.json"),
		Report:    func(string, pd.WorkerID, error) { seen <- len(r.Status().Workers) },
	})
	_, err := r.Add(pair()[1])
	require.NoError(t, err)
	assert.Equal(t, 1, <-seen)
}

func TestARoleThatWasSwitchedIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	e := newEngine("prefill")
	e.says(switchPath, 200, `{"success":true}`)
	set := newSet(t)
	r := newRegistry(t, set, Options{StateFile: path, Transport: transport(t)})
	spec := Spec{URL: e.serve(t), Role: pd.Prefill, Bootstrap: "9001", Priority: DefaultPriority, Cost: DefaultCost}
	id, err := r.Add(spec)
	require.NoError(t, err)
	_, err = r.SwitchRole(t.Context(), id, Switch{Role: pd.Decode, Force: true})
	require.NoError(t, err)

	set = newSet(t)
	again := newRegistry(t, set, Options{StateFile: path})
	assert.Equal(t, []any{pd.Decode, 0}, []any{set.Find(id).Worker.Role, set.Find(id).Worker.BootstrapPort})
	require.NoError(t, again.learn(id, Facts{Mode: "prefill", live: true}), "its engine has started anew")
	assert.Equal(t, []any{pd.Prefill, 9001}, []any{set.Find(id).Worker.Role, set.Find(id).Worker.BootstrapPort})
	assert.Equal(t, []Spec{spec}, kept(t, path))
}

func TestALinkToAStateFileStaysOne(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(target, []byte(`{"version":1,"workers":[]}`), 0o600))
	require.NoError(t, os.Symlink(target, link))
	r := newRegistry(t, newSet(t), Options{StateFile: link})
	_, err := r.Add(pair()[1])
	require.NoError(t, err)
	info, err := os.Lstat(link)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeSymlink)
	text, err := os.ReadFile(target)
	require.NoError(t, err)
	assert.Contains(t, string(text), "http://d:1")
}
