package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/integration/load/engine"
	"github.com/tandem-pd/tandem/integration/load/proc"
)

const (
	filesWanted = 32 << 10 // open files: two or three per stream held
	startLimit  = 60 * time.Second
)

// rig holds the engine, the addresses of both workers, and the routers' files.
type rig struct {
	cfg             config
	dir             string
	errOut          io.Writer
	files           uint64
	engine          *proc.Child
	engineIn        io.Closer // its end is the engine's end
	control         *engine.Control
	prefill, decode string // host:port
}

// running is a router that serves.
type running struct {
	router
	*proc.Child
	addr string
	log  *os.File
}

func newRig(ctx context.Context, cfg config, errOut io.Writer) (*rig, error) {
	files, err := proc.RaiseFiles(filesWanted)
	if err != nil {
		return nil, fmt.Errorf("open-file limit: %w", err)
	}
	dir, err := os.MkdirTemp("", "tandem-bench-")
	if err != nil {
		return nil, err
	}
	r := &rig{cfg: cfg, dir: dir, errOut: errOut, files: files}
	err = r.buildTandem(ctx)
	if err == nil {
		err = r.startEngine(ctx)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// close ends the engine and removes the files.
func (r *rig) close() {
	if r.engine != nil {
		r.engineIn.Close()
		r.engine.Stop()
	}
	os.RemoveAll(r.dir)
}

// buildTandem builds the router of this tree into its directory, if it runs.
func (r *rig) buildTandem(ctx context.Context) error {
	if !slices.ContainsFunc(r.cfg.routers, func(x router) bool { return x.name == tandem }) {
		return nil
	}
	bin := filepath.Join(r.dir, tandem, tandem)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, "github.com/tandem-pd/tandem/cmd/tandem")
	cmd.Stderr = r.errOut
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build tandem (it can be left out with -routers): %w", err)
	}
	return nil
}

func (r *rig) startEngine(ctx context.Context) error {
	ports, err := proc.FreePorts(3)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	in, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	r.prefill, r.decode = local(ports[0]), local(ports[1])
	r.control = &engine.Control{Addr: local(ports[2])}
	r.engine, err = proc.Start("engine", in, r.errOut, self, "engine", "-prefill", r.prefill, "-decode", r.decode, "-control", r.control.Addr)
	if err != nil {
		w.Close()
		return err
	}
	r.engineIn = w
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return r.engine.WaitHTTP(ctx, "http://"+r.control.Addr+"/counts")
}

// start runs one router and waits until it serves.
func (r *rig) start(ctx context.Context, rt router) (*running, error) {
	ports, err := proc.FreePorts(2)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(r.dir, rt.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	port := strconv.Itoa(ports[0])
	if rt.name == baseline {
		conf := nginxConf(port, r.prefill, r.decode, r.files, os.Geteuid() == 0)
		if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o644); err != nil {
			return nil, err
		}
	}
	argv := rt.fill(map[string]string{
		"port": port, "admin": strconv.Itoa(ports[1]), "dir": dir,
		"prefill": "http://" + r.prefill, "decode": "http://" + r.decode,
	})
	if argv[0], err = findProgram(argv[0]); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "output.log"))
	if err != nil {
		return nil, err
	}
	child, err := proc.Start(rt.name, nil, log, argv...)
	if err != nil {
		log.Close()
		return nil, err
	}
	up := &running{router: rt, Child: child, addr: local(ports[0]), log: log}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := child.WaitHTTP(ctx, "http://"+up.addr+rt.ready); err != nil {
		up.stop()
		return nil, fmt.Errorf("%w\n%s", err, lastOutput(log.Name()))
	}
	return up, nil
}

func (u *running) stop() {
	u.Stop()
	u.log.Close()
}

// findProgram looks in PATH and where Debian keeps servers.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	sbin, sbinErr := exec.LookPath(filepath.Join("/usr/sbin", name))
	if sbinErr == nil {
		return sbin, nil
	}
	return "", fmt.Errorf("%w (install it, or leave the router out with -routers)", err)
}

// lastOutput is the end of a router's log, for the message of a failed start.
func lastOutput(file string) string {
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err.Error()
	}
	const most = 2 << 10
	return string(b[max(0, len(b)-most):])
}

func (r *rig) progress(format string, args ...any) {
	fmt.Fprintf(r.errOut, format+"\n", args...)
}

func local(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
