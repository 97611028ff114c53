package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/tandem-pd/tandem/pools/registry"
)

// Bounds of a File.
const (
	maxFile = 4 << 20  // bytes of the file
	maxKey  = 16 << 10 // bytes of a file with a key

	lookEvery = 2 * time.Second
	// patience is how many looks in a row may find another file than the one
	// before until that is reported.
	patience = 10
)

// FileOptions configure a File.
type FileOptions struct {
	// Every is the wait between two looks at the file; 2 s when 0.
	Every time.Duration
	// Report, if not nil, is called on Run's goroutine when something is wrong
	// with the file that was not before, and with nil when it is good again.
	Report func(err error)
}

// File is a source that follows a file of workers; the package says how it is
// written.
type File struct {
	path string
	opt  FileOptions

	// What follows is Run's.
	trouble trouble
	applied []registry.Spec
	last    look
	steady  bool // the last two looks found the same
	changes int  // how many looks in a row did not
}

// NewFile reads the file at path. It returns an error if that is not good, so
// that one who starts with it hears of it; later the file may break.
func NewFile(path string, opt FileOptions) (*File, error) {
	opt.Every = cmp.Or(opt.Every, lookEvery)
	first := lookAt(path)
	if first.err != nil {
		return nil, first.err
	}
	return &File{path: path, opt: opt, applied: first.specs, last: first}, nil
}

// Name is "file".
func (*File) Name() string { return "file" }

// Run applies what the file says, and again when it says something else: of a
// file that is not good nothing, and of one that is good all. It returns nil when
// ctx has ended.
func (f *File) Run(ctx context.Context, apply func([]registry.Spec)) error {
	apply(f.applied)
	tick := time.NewTicker(f.opt.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			f.follow(apply)
		}
	}
}

// follow looks at the file once. What it finds counts when the look before has
// found it too: a file that is being written, or is away for the moment that it
// takes to put another in its place, is found once.
func (f *File) follow(apply func([]registry.Spec)) {
	if f.steady && f.last.unmoved() {
		return
	}
	next := lookAt(f.path)
	f.steady = next.same(f.last)
	f.last = next
	if !f.steady {
		if f.changes++; f.changes == patience {
			f.trouble.now(fmt.Errorf("%s: changes all the time", f.path), "changes", f.opt.Report)
		}
		return
	}
	f.changes = 0
	if next.err != nil {
		f.trouble.now(next.err, next.err.Error(), f.opt.Report)
		return
	}
	f.trouble.now(nil, "", f.opt.Report)
	if !reflect.DeepEqual(next.specs, f.applied) {
		f.applied = next.specs
		apply(next.specs)
	}
}

// look is what one look at the file found.
type look struct {
	specs []registry.Spec
	err   error
	// files are those that were read, as they were before; nil for one that could
	// not be read.
	files map[string]fs.FileInfo
}

func lookAt(path string) look {
	l := look{files: map[string]fs.FileInfo{}}
	text, err := l.read(path, maxFile)
	if err == nil {
		l.specs, err = parse(text, func(name string) ([]byte, error) {
			if !filepath.IsAbs(name) {
				name = filepath.Join(filepath.Dir(path), name)
			}
			return l.read(name, maxKey)
		})
	}
	if err != nil {
		l.err = fmt.Errorf("%s: %w", path, err)
	}
	return l
}

// same reports whether both looks mean the same.
func (l look) same(other look) bool {
	if l.err != nil && other.err != nil {
		return l.err.Error() == other.err.Error()
	}
	return l.err == nil && other.err == nil && reflect.DeepEqual(l.specs, other.specs)
}

// unmoved reports whether no file has been touched since. The time of a change
// may be a second off, but not as much as the wait between two looks: hence it is
// asked only when two looks have found the same.
func (l look) unmoved() bool {
	for path, then := range l.files {
		now, err := os.Stat(path)
		if then == nil && err != nil {
			continue
		}
		if then == nil || err != nil || !os.SameFile(then, now) || then.Mode() != now.Mode() ||
			then.Size() != now.Size() || !then.ModTime().Equal(now.ModTime()) {
			return false
		}
	}
	return true
}

// read reads the file at path, whose errors do not name it.
func (l look) read(path string, limit int64) ([]byte, error) {
	l.files[path] = nil
	info, err := os.Stat(path)
	if err != nil {
		return nil, bare(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file") // opening a pipe may block
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, bare(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, bare(err)
	}
	l.files[path] = info
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("has more than %d bytes", limit)
	}
	return text, nil
}

// bare is err without the path.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
