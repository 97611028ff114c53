package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func wordy(name string) bool {
	return slices.Contains([]string{"prefill", "request-id-headers", "selector"}, name)
}

var argvCases = []struct {
	name     string
	in, want []string
}{
	{"nothing", nil, []string{}},
	{"plain flags stay", []string{"--port", "1", "--decode", "u", "-h"}, []string{"--port", "1", "--decode", "u", "-h"}},
	{"a URL alone", []string{"--prefill", "http://a"}, []string{"--prefill=http://a"}},
	{"a URL and a port", []string{"--prefill", "http://a", "8998"}, []string{"--prefill=http://a 8998"}},
	{"a URL and none", []string{"--prefill", "http://a", "none", "--port", "1"}, []string{"--prefill=http://a none", "--port", "1"}},
	{"with an equals sign", []string{"--prefill=http://a", "--mini-lb"}, []string{"--prefill=http://a", "--mini-lb"}},
	{"the port behind an equals sign", []string{"--prefill=http://a", "8998"}, []string{"--prefill=http://a 8998"}},
	{"both in one argument", []string{"--prefill=http://a 8998"}, []string{"--prefill=http://a 8998"}},
	{"quoted as one word", []string{"--prefill", "http://a 8998"}, []string{"--prefill=http://a 8998"}},
	{
		"repeated",
		[]string{"--prefill", "http://a", "1", "--prefill", "http://b", "--decode", "http://c"},
		[]string{"--prefill=http://a 1", "--prefill=http://b", "--decode", "http://c"},
	},
	{"too many words stay together", []string{"--prefill", "a", "1", "x"}, []string{"--prefill=a 1 x"}},
	{"no word", []string{"--prefill", "--decode", "u"}, []string{"--prefill=", "--decode", "u"}},
	{"no word at the end", []string{"--prefill"}, []string{"--prefill="}},
	{"an empty word", []string{"--prefill", "", "--x"}, []string{"--prefill=", "--x"}},
	{"lists", []string{"--request-id-headers", "a", "b", "--port", "1"}, []string{"--request-id-headers=a b", "--port", "1"}},
	{"values with equals signs", []string{"--selector", "k=v", "k2=v2"}, []string{"--selector=k=v k2=v2"}},
	{"after two dashes nothing is a flag", []string{"--", "--prefill", "a", "b"}, []string{"--", "--prefill", "a", "b"}},
	{"two dashes end a list", []string{"--prefill", "a", "--", "b"}, []string{"--prefill=a", "--", "b"}},
	{"one dash is another flag", []string{"-prefill", "a", "b"}, []string{"-prefill", "a", "b"}},
	{"a name is matched whole", []string{"--prefill-policy", "random", "x"}, []string{"--prefill-policy", "random", "x"}},
}

func TestPlainArgv(t *testing.T) {
	for _, c := range argvCases {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.in)
			assert.Equal(t, c.want, plainArgv(c.in, wordy))
			assert.Equal(t, before, c.in, "the input is not changed")
		})
	}
}

func FuzzPlainArgv(f *testing.F) {
	for _, c := range argvCases {
		f.Add(strings.Join(c.in, "\n"))
	}
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		once := plainArgv(args, wordy)
		require.Equal(t, once, plainArgv(once, wordy), "rewriting twice is rewriting once")
		require.LessOrEqual(t, len(once), len(args))

		// No word is lost, added or moved.
		words := func(args []string) []string {
			joined := strings.NewReplacer("--prefill=", "--prefill ", "--request-id-headers=", "--request-id-headers ",
				"--selector=", "--selector ").Replace(strings.Join(args, " "))
			return strings.Fields(joined)
		}
		require.Equal(t, words(args), words(once))
	})
}

func TestNearest(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	newCommandLine().register(fs)
	for name, want := range map[string]string{
		"prefil":                "prefill",
		"prefills":              "prefill",
		"decod":                 "decode",
		"Port":                  "port",
		"request-timeout-sec":   "request-timeout-secs",
		"max_payload_size":      "max-payload-size",
		"pd-disagregation":      "pd-disaggregation",
		"request-timeout":       "request-timeout-secs",
		"abort":                 "abort-mode",
		"retry":                 "", // many flags begin so
		"something-else-at-all": "",
		"":                      "",
	} {
		assert.Equal(t, want, nearest(name, fs), name)
	}
}
