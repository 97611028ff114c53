//go:build clients

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/cases"
)

// scriptedWithin bounds a whole script.
const scriptedWithin = 60 * time.Second

// scripted is one call that a script makes with its package.
type scripted struct {
	Name   string     `json:"name"`
	Method string     `json:"method"` // chat, completions, models or abort
	Body   cases.Body `json:"body"`
}

// result is a line of a script.
type result struct {
	Name   string          `json:"name"`
	Result json.RawMessage `json:"result"`
	Error  *thrown         `json:"error"`
}

// thrown is an error as a package shows it to a program.
type thrown struct {
	Class   string `json:"class"`
	Status  int    `json:"status"`
	Message string `json:"message"`
}

// answers are calls that the oracle judges.
func answers() []scripted {
	const hello = "Hello, you"
	withLogprobs := cases.Body{"logprobs": true, "top_logprobs": 2}
	return []scripted{
		{"a chat", "chat", cases.Say(hello, 8)},
		{"a chat stream", "chat", cases.Say(hello, 8).With(stream)},
		{"a chat stream with usage", "chat", cases.Say(hello, 8).With(withUsage)},
		{"two samples of a chat", "chat", cases.Say(hello, 6).With(two)},
		{"a stream of two samples with usage", "chat", cases.Say(hello, 6).With(two).With(withUsage)},
		{"log probabilities of a chat", "chat", cases.Say(hello, 5).With(withLogprobs)},
		{"log probabilities of a chat stream", "chat", cases.Say(hello, 5).With(withLogprobs).With(stream)},
		{"a completion", "completions", cases.Complete(hello, 8)},
		{"a completion of token ids", "completions", cases.Complete(cases.Tokens(1, 12), 8)},
		{"a completion of each of two texts", "completions", cases.Complete([]string{"One", "Another"}, 4)},
		{"a completion stream with usage", "completions", cases.Complete(hello, 8).With(withUsage)},
		{"a completion with its prompt and log probabilities", "completions", cases.Complete(hello, 4).With(cases.Body{"echo": true, "logprobs": 2})},
	}
}

// Calls whose results are looked at one by one.
var (
	models      = scripted{"the models", "models", cases.Body{}}
	badForUs    = scripted{"a body that Tandem refuses", "chat", cases.Say("Hello", 4).With(cases.Body{"n": "two"})}
	badForThem  = scripted{"a body that an engine refuses", "chat", cases.Say("Hello", 4).With(cases.Body{"max_tokens": "many"})}
	leftHalfway = scripted{"a stream that is left halfway", "abort", cases.Say("Hello", 400).With(stream)}
)

func TestOpenAIPackageOfNode(t *testing.T) {
	installed(t, "npm", "node_modules", "openai", "package.json")
	results := useDemo(t, "node", "openai.mjs")
	// This package finds a message only below the key error, where SGLang's
	// engines do not put theirs; Tandem passes their words as they are.
	requireThrown(t, results, badForThem, "400")
}

func TestOpenAIPackageOfPython(t *testing.T) {
	results := useDemo(t, installed(t, "venv", "bin", "python"), "openai_client.py")
	requireThrown(t, results, badForThem, "valid integer")
}

// useDemo runs a script against a demo, requires of its results what all
// packages must give, and returns them by name.
func useDemo(t *testing.T, program, script string) map[string]result {
	t.Helper()
	demo := run(t, "tandem demo", tandem(t), "demo", "--port", "0")
	router, prefill := demo.word(t, "router"), demo.word(t, "prefill-0")
	demo.ready(t, router+"/readiness")
	results := runScript(t, router, program, script, append(answers(), models, badForUs, badForThem, leftHalfway))
	for _, call := range answers() {
		t.Run(call.Name, func(t *testing.T) { requireRight(t, call, results[call.Name], prefill) })
	}
	t.Run(models.Name, func(t *testing.T) {
		var list []struct{ ID string }
		require.NoError(t, json.Unmarshal(results[models.Name].Result, &list), "%+v", results[models.Name])
		require.Len(t, list, 1)
		assert.Equal(t, "tiny", list[0].ID)
	})
	t.Run(badForUs.Name, func(t *testing.T) { requireThrown(t, results, badForUs, "n must be") })
	t.Run(leftHalfway.Name, func(t *testing.T) {
		var left struct {
			Chunks, LoadBefore, LoadAfter int
			Milliseconds                  float64
		}
		require.NoError(t, json.Unmarshal(results[leftHalfway.Name].Result, &left), "%+v", results[leftHalfway.Name])
		assert.Equal(t, 3, left.Chunks)
		assert.Positive(t, left.LoadBefore, "the stream runs while the client reads it")
		assert.Zero(t, left.LoadAfter)
		assert.Less(t, left.Milliseconds, 1000.0, "the engines are free within a second")
	})
	demo.interrupt(t)
	return results
}

// runScript runs a script on its input and returns its lines by name.
func runScript(t *testing.T, base, program, script string, calls []scripted) map[string]result {
	t.Helper()
	input, err := json.Marshal(map[string]any{"base": base, "calls": calls})
	require.NoError(t, err)
	path, err := filepath.Abs(script)
	require.NoError(t, err)
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), scriptedWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &errs
	require.NoError(t, cmd.Run(), "%s\n%s", errs.String(), out.String())
	results := map[string]result{}
	for dec := json.NewDecoder(&out); dec.More(); {
		var line result
		require.NoError(t, dec.Decode(&line))
		results[line.Name] = line
	}
	require.Len(t, results, len(calls))
	return results
}

func requireRight(t *testing.T, c scripted, got result, prefill string) {
	t.Helper()
	require.Nil(t, got.Error)
	path := chatPath
	if c.Method == "completions" {
		path = completionsPath
	}
	o, err := newOracle(call{name: c.Name, path: path, body: c.Body}, prefill)
	require.NoError(t, err)
	// The package has taken the [DONE] for itself.
	a := answer{status: http.StatusOK, body: got.Result, done: true}
	if o.streams() {
		var events []json.RawMessage
		require.NoError(t, json.Unmarshal(got.Result, &events))
		for _, event := range events {
			a.events = append(a.events, event)
		}
	}
	require.NoError(t, o.check(a), "%s", got.Result)
}

func requireThrown(t *testing.T, results map[string]result, c scripted, message string) {
	t.Helper()
	got := results[c.Name].Error
	require.NotNil(t, got, "%s: %s", c.Name, results[c.Name].Result)
	assert.Equal(t, "BadRequestError", got.Class)
	assert.Equal(t, http.StatusBadRequest, got.Status)
	assert.Contains(t, got.Message, message)
}
