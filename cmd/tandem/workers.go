package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Bounds of what is asked of a router.
const (
	askTimeout = 10 * time.Second
	askAnswer  = 64 << 20 // bytes
)

// keyVariable is the environment's name for the router's key, which on a command
// line everybody on the machine could read.
const keyVariable = "TANDEM_API_KEY"

// watcher shows the workers of a router.
type watcher struct {
	url    string
	key    string
	json   bool
	every  time.Duration // 0 for once
	client *http.Client
	now    func() time.Time
	stdout io.Writer
	stderr io.Writer
}

// newWorkers is the command that shows the workers of a router.
func newWorkers(stdout, stderr io.Writer) *cobra.Command {
	var bad mistakes
	w := &watcher{
		url: "http://127.0.0.1:30000", now: time.Now, stdout: stdout, stderr: stderr,
		client: &http.Client{Timeout: askTimeout, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the key is for this address
		}},
	}
	cmd := &cobra.Command{
		Use:   "workers [flags]",
		Short: "Show the workers of a running router, and how they do",
		Long: "Show the workers of a running router: what each is given to do, and why it is given\n" +
			"nothing where it is not. The router's key is --api-key, or better " + keyVariable + ".",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := bad.err(); err != nil {
				return usageError{err}
			}
			if w.key == "" {
				w.key = os.Getenv(keyVariable)
			}
			ctx, stop := stopContext(cmd.Context())
			defer stop()
			defer w.client.CloseIdleConnections()
			return w.run(ctx)
		},
	}
	add := func(name string, v *flagValue, usage string) {
		v.name, v.bad = name, &bad
		f := cmd.Flags().VarPF(v, name, "", usage)
		if v.typ == "bool" {
			f.NoOptDefVal = "true"
		}
	}
	add("url", routerValue(&w.url), "where the router is")
	add("api-key", secretValue(&w.key), "the router's key")
	add("json", boolValue(&w.json), "print the router's answer to GET /workers")
	add("watch", secondsValue(&w.every, 1), "print again, so many seconds after it was printed")
	return cmd
}

// routerValue is a router's address.
func routerValue(dst *string) *flagValue {
	return &flagValue{typ: "url", text: *dst, parse: func(text string) error {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" ||
			strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return errors.New("want http://HOST:PORT or https://HOST:PORT")
		}
		*dst = u.Scheme + "://" + u.Host
		return nil
	}}
}

// run shows the workers once, or until ctx ends. While it watches, a router that
// cannot be asked is no reason to stop.
func (w *watcher) run(ctx context.Context) error {
	if w.every == 0 {
		return w.show(ctx, "")
	}
	before := "" // an empty line between two tables, or on a terminal an empty screen
	if isTerminal(w.stdout) {
		before = "\x1b[H\x1b[2J"
	}
	pause := time.NewTimer(w.every)
	defer pause.Stop()
	for {
		err := w.show(ctx, before)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			fmt.Fprintf(w.stderr, "tandem: %v\n", err)
		}
		if before == "" {
			before = "\n"
		}
		pause.Reset(w.every)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}

// isTerminal reports whether what is written is for somebody's eyes.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// show asks the router and prints its answer behind before.
func (w *watcher) show(ctx context.Context, before string) error {
	answer, err := w.ask(ctx)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	out.WriteString(before)
	if w.json {
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, bytes.TrimSpace(answer), "", "  "); err != nil {
			return fmt.Errorf("%s does not answer as a router does", w.url)
		}
		out.WriteString(escaped(pretty.String()))
		out.WriteByte('\n')
	} else {
		var list workerList
		if err := json.Unmarshal(answer, &list); err != nil || list.Workers == nil {
			return fmt.Errorf("%s does not answer as a router does", w.url)
		}
		list.write(&out, w.now())
	}
	_, err = w.stdout.Write(out.Bytes())
	return err
}

// ask has the router list its workers.
func (w *watcher) ask(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/workers", http.NoBody)
	if err != nil {
		return nil, err
	}
	if w.key != "" {
		req.Header.Set("Authorization", "Bearer "+w.key)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		var cause *url.Error
		if errors.As(err, &cause) {
			err = cause.Err // which is not about a GET
		}
		return nil, fmt.Errorf("no router can be reached at %s: %w", w.url, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		if w.key == "" {
			return nil, fmt.Errorf("the router at %s asks for its key: give it with --api-key or %s", w.url, keyVariable)
		}
		return nil, fmt.Errorf("the router at %s does not take this key", w.url)
	default:
		return nil, fmt.Errorf("%s answers GET /workers with status %d", w.url, resp.StatusCode)
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, askAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer of %s breaks off: %w", w.url, err)
	case len(answer) > askAnswer:
		return nil, fmt.Errorf("the answer of %s has more than %d bytes", w.url, askAnswer)
	}
	return answer, nil
}
