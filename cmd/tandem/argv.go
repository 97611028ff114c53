package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// plainArgv rewrites flags that take several words into one argument each:
//
//	--prefill URL 8998 --decode URL   becomes   "--prefill=URL 8998" --decode URL
//
// words says which flags do. Such a flag takes every word up to the next that
// starts with a dash. Everything else stays as it is, and so does what follows
// "--". Rewriting twice is rewriting once.
func plainArgv(args []string, words func(flag string) bool) []string {
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(out, args[i:]...)
		}
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !strings.HasPrefix(arg, "--") || !words(name) {
			out = append(out, arg)
			continue
		}
		for i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			i++
			value += " " + args[i]
		}
		out = append(out, "--"+name+"="+strings.Join(strings.Fields(value), " "))
	}
	return out
}

// unknownFlag says that there is no such flag, and names the one that may have
// been meant.
func unknownFlag(name string, flags *pflag.FlagSet) string {
	if near := nearest(name, flags); near != "" {
		return fmt.Sprintf("unknown flag --%s; did you mean --%s?", name, near)
	}
	return "unknown flag --" + name
}

// nearest is the flag whose name is closest to name, or else the only one that
// begins with it; empty if there is none.
func nearest(name string, flags *pflag.FlagSet) string {
	best, distance := "", max(1, len(name)/4) // beyond which it is another word
	var longer []string
	flags.VisitAll(func(f *pflag.Flag) {
		if d := editDistance(name, f.Name); d <= distance && (d < distance || best == "") {
			best, distance = f.Name, d
		}
		if strings.HasPrefix(f.Name, name) {
			longer = append(longer, f.Name)
		}
	})
	if best == "" && len(longer) == 1 {
		return longer[0]
	}
	return best
}

// editDistance counts the bytes to insert, delete or replace between a and b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
