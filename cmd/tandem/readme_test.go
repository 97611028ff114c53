package main

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools/discovery"
)

// blockOf is the indented block of the README behind the line that ends with lead,
// one string for each line.
func blockOf(t *testing.T, lead string) []string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), lead+"\n\n")
	require.True(t, found, "%q is not in the README", lead)
	var block []string
	for line := range strings.Lines(rest) {
		if line = strings.TrimRight(line, "\n"); line != "" && !strings.HasPrefix(line, "    ") {
			break
		}
		block = append(block, strings.TrimPrefix(line, "    "))
	}
	return block
}

func TestTheFleetsCommandsInTheREADME(t *testing.T) {
	p := start(t, "demo", "--port", "0")
	base := p.ready(t)
	curl := regexp.MustCompile(`^curl -s (?:-X ([A-Z]+) )?'?(http://127\.0\.0\.1:30000[^ ']+)'?(?: -d '([^']*)')?(?: +#.*)?$`)
	ran := 0
	for _, line := range blockOf(t, "With `make run` in another shell:") {
		switch parts := curl.FindStringSubmatch(line); {
		case line == "":
			continue
		case parts != nil:
			method := parts[1]
			if method == "" && parts[3] != "" {
				method = http.MethodPost
			} else if method == "" {
				method = http.MethodGet
			}
			status, answer := try(method, strings.Replace(parts[2], "http://127.0.0.1:30000", base, 1), parts[3])
			// 206: the worker that is added has no engine.
			assert.Contains(t, []int{200, 202, 206}, status, "%s: %s", line, answer)
		case strings.HasPrefix(line, "bin/tandem workers"):
			code, out, errs := ended(t, "workers", "--url", base)
			assert.Zero(t, code, errs)
			assert.Contains(t, out, "prefill-1")
		default:
			t.Errorf("no test knows how to run %q", line)
		}
		ran++
	}
	assert.Equal(t, 10, ran)
	p.stop()
	assert.Equal(t, exitOK, p.end(t))
}

func TestTheFileOfWorkersInTheREADME(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	text := strings.Join(blockOf(t, "`tandem --pd-disaggregation --worker-file workers.yaml` takes"), "\n")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	_, err := discovery.NewFile(path, discovery.FileOptions{})
	require.NoError(t, err)
}
