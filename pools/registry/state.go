package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/tandem-pd/tandem/pd"
)

// stateVersion is that of the state file's form.
const stateVersion = 1

// state is the state file: the workers that were added by the API.
type state struct {
	Version int           `json:"version"`
	Workers []stateWorker `json:"workers"`
}

// stateWorker is a worker as it was added, with what has been changed since.
type stateWorker struct {
	Document
	// Switched is the role that the engine was switched to; empty if it has that of
	// the document.
	Switched string `json:"switched_to,omitempty"`
}

// saved is a worker that was saved, and the role that it was switched to.
type saved struct {
	spec Spec
	role *pd.Role
}

// readState reads a state file; one that is not there says nothing. The error
// names the file and shows nothing of what it holds.
func readState(path string) ([]saved, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("registry: %w", err)
	case !info.Mode().IsRegular(): // a pipe may block, and a device never end
		return nil, fmt.Errorf("registry: %s is not a regular file", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	var st state
	if err := json.Unmarshal(text, &st); err != nil || st.Version != stateVersion {
		return nil, fmt.Errorf("registry: %s is no state file of this version", path)
	}
	out := make([]saved, len(st.Workers))
	for i := range st.Workers {
		w := &st.Workers[i]
		if out[i].spec, err = w.Spec(); err != nil {
			return nil, fmt.Errorf("registry: %s: worker %d: %w", path, i, err)
		}
		if role, known := pairRole(w.Switched); known {
			out[i].role = &role
		} else if w.Switched != "" {
			return nil, fmt.Errorf("registry: %s: worker %d: switched_to: want prefill or decode", path, i)
		}
	}
	return out, nil
}

// save has unlock write the state file.
func (r *Registry) save() { r.unsaved = r.opt.StateFile != "" }

// unlock gives the lock back and writes the state file if it is to be: nobody waits
// for a disk but who has changed something.
func (r *Registry) unlock() {
	unsaved := r.unsaved
	r.mu.Unlock()
	if unsaved {
		r.write()
	}
}

// write writes the state file, unless another one has done so meanwhile. A failure is
// reported, and shown until one is written: the change has been made, and the next
// one is written again whole.
func (r *Registry) write() {
	r.disk.Lock()
	defer r.disk.Unlock()
	st, unsaved := r.state()
	if !unsaved {
		return
	}
	err := writeState(r.opt.StateFile, st)
	if err != nil {
		r.opt.Report(byAPI, "", err)
	}
	r.Trouble(byAPI, err)
}

// state is what the state file is to hold, and whether it does not.
func (r *Registry) state() (st state, unsaved bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st = state{Version: stateVersion, Workers: []stateWorker{}}
	for _, e := range r.entries {
		if e.stays() && e.source() == byAPI {
			st.Workers = append(st.Workers, e.saved())
		}
	}
	unsaved, r.unsaved = r.unsaved, false
	return st, unsaved
}

// saved is what the state file keeps of an entry.
func (e *entry) saved() stateWorker {
	change := e.change
	change.role = nil // it takes more than the role to be switched back
	spec := change.over(e.claims[0].spec)
	w := stateWorker{Document: documentOf(&spec)}
	if role := e.change.role; role != nil {
		w.Switched = role.String()
	}
	return w
}

// writeState replaces the file whole: a router that is killed meanwhile leaves the
// old one or the new one. It holds keys, and is for its owner alone.
func writeState(path string, st state) (err error) {
	text, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return err
	}
	next := path + ".new" // one name, so that a crash leaves no more than one behind
	if err = os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(next)
		}
	}()
	if _, err = f.Write(append(text, '\n')); err != nil {
		return err
	}
	if err = f.Sync(); err != nil { // else a crash may leave an empty file under the new name
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(next, path)
}
