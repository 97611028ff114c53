package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// mistakes are what is wrong with a command line. They are collected, so that
// one message names them all.
type mistakes []string

func (m *mistakes) add(format string, args ...any) { *m = append(*m, fmt.Sprintf(format, args...)) }

func (m mistakes) err() error {
	switch len(m) {
	case 0:
		return nil
	case 1:
		return errors.New(m[0])
	default:
		return fmt.Errorf("%d mistakes in the command line:\n  %s", len(m), strings.Join(m, "\n  "))
	}
}

// flagValue is one flag. A value that cannot be used is noted instead of ending
// the parsing.
type flagValue struct {
	typ   string // of the value, for the usage text
	text  string // the value as given, at first the default
	words bool   // it takes several words
	// secret values are shown nowhere, not even in a mistake.
	secret bool
	parse  func(text string) error // the error says what is allowed

	name string
	bad  *mistakes
}

func (v *flagValue) String() string { return v.text }

func (v *flagValue) Type() string { return v.typ }

func (v *flagValue) Set(text string) error {
	err := v.parse(text)
	if v.secret {
		if err != nil {
			v.bad.add("--%s: %v", v.name, err)
		}
		return nil
	}
	v.text = text
	if err != nil {
		v.bad.add("--%s %q: %v", v.name, redact(text), err)
	}
	return nil
}

// takesWords reports whether a flag, which may be nil, takes several words.
func takesWords(f *pflag.Flag) bool {
	if f == nil {
		return false
	}
	v, ok := f.Value.(*flagValue)
	return ok && v.words
}

// redact hides the credentials of a URL.
func redact(text string) string {
	if i := strings.LastIndexByte(text, '@'); i >= 0 {
		return "***" + text[i:]
	}
	return text
}

func stringValue(dst *string) *flagValue {
	return &flagValue{typ: "string", text: *dst, parse: func(text string) error {
		*dst = text
		return nil
	}}
}

func boolValue(dst *bool) *flagValue {
	return &flagValue{typ: "bool", text: strconv.FormatBool(*dst), parse: func(text string) (err error) {
		if *dst, err = strconv.ParseBool(text); err != nil {
			return errors.New("want true or false")
		}
		return nil
	}}
}

// numberValue is an integer from low to high.
func numberValue[T int | int64](dst *T, low, high T) *flagValue {
	return &flagValue{typ: "number", text: strconv.FormatInt(int64(*dst), 10), parse: func(text string) error {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < int64(low) || n > int64(high) {
			return fmt.Errorf("want a number from %d to %d", low, high)
		}
		*dst = T(n)
		return nil
	}}
}

// secondsValue is a whole number of seconds, as the gateway's flags are.
func secondsValue(dst *time.Duration, low int64) *flagValue {
	return wholeValue(dst, low, time.Second, "seconds")
}

// millisValue is a whole number of milliseconds.
func millisValue(dst *time.Duration, low int64) *flagValue {
	return wholeValue(dst, low, time.Millisecond, "ms")
}

// wholeValue is a time in whole units.
func wholeValue(dst *time.Duration, low int64, unit time.Duration, typ string) *flagValue {
	n := int64(*dst / unit)
	v := numberValue(&n, low, math.MaxInt32)
	v.typ = typ
	parse := v.parse
	v.parse = func(text string) error {
		if err := parse(text); err != nil {
			return err
		}
		*dst = time.Duration(n) * unit
		return nil
	}
	return v
}

// durationValue is a time with its unit, as Tandem's own flags are.
func durationValue(dst *time.Duration) *flagValue {
	return &flagValue{typ: "duration", text: dst.String(), parse: func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return errors.New("want a time with its unit, such as 500ms or 2s")
		}
		*dst = d
		return nil
	}}
}

func choiceValue(dst *string, names ...string) *flagValue {
	return &flagValue{typ: "name", text: *dst, parse: func(text string) error {
		if !slices.Contains(names, text) {
			return fmt.Errorf("want one of %s", strings.Join(names, ", "))
		}
		*dst = text
		return nil
	}}
}

// wordsValue is a list. The last one given counts.
func wordsValue(dst *[]string) *flagValue {
	return &flagValue{typ: "words", text: strings.Join(*dst, " "), words: true, parse: func(text string) error {
		*dst = strings.Fields(text)
		return nil
	}}
}
