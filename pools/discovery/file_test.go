package discovery_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools/discovery"
)

// every is the wait between two looks, and settled what passes until one has been
// followed that holds: it may have to be found twice, and not just before.
const (
	every   = 2 * time.Second
	settled = 3*every - time.Millisecond
)

// workersFile is the text of a file with these entries.
func workersFile(entries ...string) string {
	return "workers: [" + strings.Join(entries, ", ") + "]\n"
}

const (
	workerA = "{url: 'http://a:1'}"
	workerB = "{url: 'http://b:1', api_key: " + secret + "}"
)

// folder is where a test has its files.
type folder struct {
	t     *testing.T
	path  string
	wrote time.Time
}

func newFolder(t *testing.T) *folder {
	return &folder{t: t, path: t.TempDir(), wrote: time.Now().Add(-time.Hour)}
}

func (d *folder) file(name string) string { return filepath.Join(d.path, name) }

// write writes a file in place. Time is not what it seems in a bubble: that of
// each change is another one all the same.
func (d *folder) write(name, text string) {
	d.t.Helper()
	require.NoError(d.t, os.WriteFile(d.file(name), []byte(text), 0o600))
	d.wrote = d.wrote.Add(time.Second)
	require.NoError(d.t, os.Chtimes(d.file(name), d.wrote, d.wrote))
}

// following runs a source over the file with worker a in the folder.
func following(t *testing.T, f func(t *testing.T, d *folder, j *journal)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, j := newFolder(t), &journal{}
		d.write("workers", workersFile(workerA))
		file, err := discovery.NewFile(d.file("workers"), discovery.FileOptions{Report: j.report})
		require.NoError(t, err)
		assert.Equal(t, "file", file.Name())
		stop := running(t, file, j)
		defer stop()
		require.Equal(t, [][]string{{"http://a:1"}}, j.applied(), "what is known first is applied at once")
		f(t, d, j)
	})
}

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestAFileThatIsNotGoodAtTheStartIsAnError(t *testing.T) {
	d := newFolder(t)
	_, err := discovery.NewFile(d.file("workers"), discovery.FileOptions{})
	require.EqualError(t, err, d.file("workers")+": no such file or directory")
	d.write("workers", "workers: [{url: nonsense}]")
	_, err = discovery.NewFile(d.file("workers"), discovery.FileOptions{})
	require.EqualError(t, err, d.file("workers")+": workers[0].url: want http://HOST:PORT or https://HOST:PORT")
	_, err = discovery.NewFile(d.path, discovery.FileOptions{})
	require.EqualError(t, err, d.path+": is not a regular file")
}

func TestAChangedFileIsFollowed(t *testing.T) {
	following(t, func(t *testing.T, d *folder, j *journal) {
		d.write("workers", workersFile(workerA, workerB))
		wait(settled)
		assert.Equal(t, [][]string{{"http://a:1", "http://b:1"}}, j.applied())
		d.write("workers", workersFile(workerB))
		wait(settled)
		assert.Equal(t, [][]string{{"http://b:1"}}, j.applied())
		d.write("workers", workersFile())
		wait(settled)
		assert.Equal(t, [][]string{{}}, j.applied(), "the operator has said that there are none")
		d.write("workers", "# none\n"+workersFile())
		wait(time.Hour)
		assert.Empty(t, j.applied(), "it says the same in other words")
		assert.Empty(t, j.reported())
	})
}

func TestABrokenFileKeepsTheWorkersAndIsReportedOnce(t *testing.T) {
	f := func(what, text, want string) {
		t.Helper()
		following(t, func(t *testing.T, d *folder, j *journal) {
			d.write("workers", text)
			wait(time.Hour)
			want := d.file("workers") + ": " + want
			assert.Equal(t, []string{want}, j.reported(), what)
			d.write("workers", workersFile(workerA))
			wait(settled)
			assert.Equal(t, []string{""}, j.reported(), what)
			assert.Empty(t, j.applied(), what)
			d.write("workers", text)
			wait(settled)
			assert.Equal(t, []string{want}, j.reported(), "it is news again")
		})
	}
	f("no YAML", "workers: [", "line 1: not valid YAML: did not find expected node content")
	f("empty", "", "is empty; that there are no workers is written as workers: []")
	f("one of two", workersFile(workerA, "{url: 'http://b:1', role: decode}"), "workers[1].role: unknown field")
	f("too large", workersFile(workerB)+strings.Repeat("#\n", discovery.MaxFile/2), "has more than 4194304 bytes")
}

func TestEachBrokenFileIsReported(t *testing.T) {
	following(t, func(t *testing.T, d *folder, j *journal) {
		d.write("workers", workersFile("{}"))
		wait(settled)
		d.write("workers", workersFile(workerA, "{}"))
		wait(settled)
		reports := j.reported()
		require.Len(t, reports, 2)
		assert.Contains(t, reports[0], "workers[0].url")
		assert.Contains(t, reports[1], "workers[1].url")
	})
}

func TestAFileThatIsGoneKeepsTheWorkers(t *testing.T) {
	following(t, func(t *testing.T, d *folder, j *journal) {
		require.NoError(t, os.Remove(d.file("workers")))
		wait(time.Hour)
		assert.Equal(t, []string{d.file("workers") + ": no such file or directory"}, j.reported())
		require.NoError(t, syscall.Mkfifo(d.file("workers"), 0o600))
		wait(settled)
		assert.Equal(t, []string{d.file("workers") + ": is not a regular file"}, j.reported(), "nobody waits for a writer")
		require.NoError(t, os.Remove(d.file("workers")))
		d.write("workers", workersFile(workerB))
		wait(settled)
		assert.Equal(t, []string{""}, j.reported(), "away for a moment is no news")
		assert.Equal(t, [][]string{{"http://b:1"}}, j.applied())
	})
}

// A writer that is not done at a look is let finish: neither the workers that are
// not written yet are taken away, nor is the file said to be broken.
func TestAFileThatIsBeingWrittenIsLeftToTheWriter(t *testing.T) {
	following(t, func(t *testing.T, d *folder, j *journal) {
		wait(every / 2) // between two looks
		for _, text := range []string{"", "work", "workers:\n- {url: 'http://a:1'", "workers:\n- {url: 'http://b:1'}\n"} {
			d.write("workers", text)
			wait(every)
		}
		assert.Empty(t, j.reported())
		assert.Empty(t, j.applied())
		d.write("workers", "workers:\n- {url: 'http://b:1'}\n- {url: 'http://a:1'}\n")
		wait(settled)
		assert.Empty(t, j.reported())
		assert.Equal(t, [][]string{{"http://b:1", "http://a:1"}}, j.applied())
	})
}

func TestAFileThatChangesAllTheTimeIsReported(t *testing.T) {
	following(t, func(t *testing.T, d *folder, j *journal) {
		wait(every / 2)
		for i := range 2 * discovery.Patience {
			d.write("workers", workersFile("{url: 'http://a:"+strconv.Itoa(i+1)+"'}"))
			wait(every)
		}
		assert.Equal(t, []string{d.file("workers") + ": changes all the time"}, j.reported())
		assert.Empty(t, j.applied())
		wait(settled)
		assert.Equal(t, []string{""}, j.reported())
		assert.Len(t, j.applied(), 1)

		for i := range 2 * discovery.Patience {
			d.write("workers", "# "+strconv.Itoa(i)+"\n"+workersFile(workerB))
			wait(every)
		}
		assert.Empty(t, j.reported(), "what it says does not")
		assert.Equal(t, [][]string{{"http://b:1"}}, j.applied())
	})
}

func TestHowAFileIsReplaced(t *testing.T) {
	t.Run("by renaming another", func(t *testing.T) {
		following(t, func(t *testing.T, d *folder, j *journal) {
			d.write("workers~", workersFile(workerB))
			require.NoError(t, os.Rename(d.file("workers~"), d.file("workers")))
			wait(settled)
			assert.Equal(t, [][]string{{"http://b:1"}}, j.applied())
		})
	})
	t.Run("by one of the same size and time", func(t *testing.T) {
		following(t, func(t *testing.T, d *folder, j *journal) {
			wait(settled)
			info, err := os.Stat(d.file("workers"))
			require.NoError(t, err)
			d.write("workers~", workersFile("{url: 'http://b:1'}"))
			require.NoError(t, os.Chtimes(d.file("workers~"), info.ModTime(), info.ModTime()))
			require.NoError(t, os.Rename(d.file("workers~"), d.file("workers")))
			wait(settled)
			assert.Equal(t, [][]string{{"http://b:1"}}, j.applied())
		})
	})
	// As the kubelet does it: the file is a link into ..data, which is a link to a
	// folder of this version and is put in its place with a rename.
	t.Run("by moving a ConfigMap's link", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, j := newFolder(t), &journal{}
			publish := func(version, text string) {
				require.NoError(t, os.Mkdir(d.file(version), 0o700))
				d.write(version+"/workers", text)
				require.NoError(t, os.Symlink(version, d.file("..data_tmp")))
				require.NoError(t, os.Rename(d.file("..data_tmp"), d.file("..data")))
			}
			publish("..1", workersFile(workerA))
			require.NoError(t, os.Symlink("..data/workers", d.file("workers")))
			file, err := discovery.NewFile(d.file("workers"), discovery.FileOptions{Report: j.report})
			require.NoError(t, err)
			stop := running(t, file, j)
			defer stop()
			wait(time.Minute)
			publish("..2", workersFile(workerB))
			require.NoError(t, os.RemoveAll(d.file("..1")))
			wait(settled)
			assert.Equal(t, [][]string{{"http://a:1"}, {"http://b:1"}}, j.applied())
			assert.Empty(t, j.reported())
		})
	})
}

func TestAKeyInAFileOfItsOwnIsFollowedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, j := newFolder(t), &journal{}
		d.write("key", "old\n")
		d.write("workers", workersFile("{url: 'http://a:1', api_key_file: key}"))
		file, err := discovery.NewFile(d.file("workers"), discovery.FileOptions{Report: j.report})
		require.NoError(t, err)
		stop := running(t, file, j)
		defer stop()
		take := func() []string {
			j.mu.Lock()
			defer j.mu.Unlock()
			var given []string
			for _, list := range j.lists {
				given = append(given, list[0].APIKey)
			}
			j.lists = nil
			return given
		}
		assert.Equal(t, []string{"old"}, take())
		wait(time.Minute)
		d.write("key", "new\n")
		wait(settled)
		assert.Equal(t, []string{"new"}, take())

		d.write("key", strings.Repeat("k", discovery.MaxKey+1))
		wait(settled)
		assert.Equal(t, []string{d.file("workers") + ": workers[0].api_key_file: has more than 16384 bytes"}, j.reported())
		require.NoError(t, os.Remove(d.file("key")))
		wait(settled)
		assert.Equal(t, []string{d.file("workers") + ": workers[0].api_key_file: no such file or directory"}, j.reported())
		d.write("key", "newer")
		wait(settled)
		assert.Equal(t, []string{""}, j.reported())
		assert.Equal(t, []string{"newer"}, take())
	})
}

func TestAFileIsNotReadWhileNothingTouchesIt(t *testing.T) {
	following(t, func(t *testing.T, d *folder, j *journal) {
		wait(settled)
		info, err := os.Stat(d.file("workers"))
		require.NoError(t, err)
		// Nobody but a test changes a file and says that it did not.
		d.write("workers", workersFile("{url: 'http://b:1'}"))
		require.NoError(t, os.Chtimes(d.file("workers"), info.ModTime(), info.ModTime()))
		wait(time.Hour)
		assert.Empty(t, j.applied())
	})
}
