package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// stateVersion is that of the state file's form.
const stateVersion = 1

// state is the state file: the workers that were added by the API.
type state struct {
	Version int        `json:"version"`
	Workers []Document `json:"workers"`
}

// readState reads a state file; one that is not there says nothing. The error
// names the file and shows nothing of what it holds.
func readState(path string) ([]Spec, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	var st state
	if err := json.Unmarshal(text, &st); err != nil || st.Version != stateVersion {
		return nil, fmt.Errorf("registry: %s is no state file of this version", path)
	}
	specs := make([]Spec, len(st.Workers))
	for i := range st.Workers {
		if specs[i], err = st.Workers[i].Spec(); err != nil {
			return nil, fmt.Errorf("registry: %s: worker %d: %w", path, i, err)
		}
	}
	return specs, nil
}

// save writes the state file. A failure is reported: the change has been made, and
// the next one is written again whole.
func (r *Registry) save() {
	if r.opt.StateFile == "" {
		return
	}
	st := state{Version: stateVersion, Workers: []Document{}}
	for _, e := range r.entries {
		if e.stays() && e.claims[0].source == byAPI {
			spec := e.spec()
			st.Workers = append(st.Workers, documentOf(&spec))
		}
	}
	if err := writeState(r.opt.StateFile, st); err != nil {
		r.opt.Report(byAPI, "", err)
	}
}

// writeState replaces the file whole: a router that is killed meanwhile leaves the
// old one or the new one. It holds keys, and is for its owner alone.
func writeState(path string, st state) (err error) {
	text, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
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
	return os.Rename(f.Name(), path)
}
