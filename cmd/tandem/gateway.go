package main

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// addWithoutMeaning adds the flags of SGLang's gateways that mean nothing here:
// their values are checked, and one warning names those that were given.
func (l *commandLine) addWithoutMeaning(add addFlag) {
	number := func(text string) error {
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			return errors.New("want a number")
		}
		return nil
	}
	float := func(text string) error {
		if _, err := strconv.ParseFloat(text, 64); err != nil {
			return errors.New("want a number")
		}
		return nil
	}
	boolean := func(text string) error {
		if _, err := strconv.ParseBool(text); err != nil {
			return errors.New("want true or false")
		}
		return nil
	}
	anything := func(string) error { return nil }
	for _, group := range []struct {
		typ   string
		parse func(string) error
		names string
	}{
		{"number", number, `
			eviction-interval eviction-interval-secs max-tree-size block-size least-load-mean-prefill-tokens
			worker-startup-check-interval worker-startup-delay load-monitor-interval
			prometheus-port mesh-port runtime-worker-threads
			health-check-port priority-scheduler-tenant-metric-top-n cache-ttl-secs`},
		{"float", float, `
			cache-threshold
			balance-token-usage-threshold overload-token-usage-threshold
			least-load-kv-pressure-weight least-load-default-throughput`},
		{"bool", boolean, `
			dp-minimum-tokens-scheduler enable-trace enable-mesh enable-wasm engine-metrics log-json trust-tenant-header
			control-plane-audit-enabled disable-audit-logging remove-unhealthy-workers
			disable-tokenizer-autoload enable-igw priority-scheduler-enabled tenant-rate-limit-enabled`},
		{"string", anything, `
			routing-key-override cache-index cache-boundaries
			model-id-from mesh-server-name mesh-host mesh-advertise-host
			prometheus-host otlp-traces-endpoint tenant-header-name
			priority-scheduler-default-max-class priority-scheduler-config tenant-rate-limit-config
			model-path tokenizer-path chat-template reasoning-parser tool-call-parser
			history-backend mcp-config-path encode-policy`},
		{"words", anything, `
			prometheus-duration-buckets
			router-selector encode-selector mesh-peer-urls model-alias storage-context-headers`},
	} {
		for name := range strings.FieldsSeq(group.names) {
			add(name, &flagValue{typ: group.typ, words: group.typ == "words", parse: func(text string) error {
				if !slices.Contains(l.withoutMeaning, name) {
					l.withoutMeaning = append(l.withoutMeaning, name)
				}
				return group.parse(text)
			}}, "").Hidden = true
		}
	}
}

// addRefused adds the flags that must not be ignored: without what they ask for,
// a router would be open, or not what its operator takes it to be. A value is
// never shown, since it may be a secret.
func (l *commandLine) addRefused(add addFlag) {
	for _, group := range []struct{ typ, names, why string }{
		{
			"string", "jwt-issuer jwt-audience jwt-jwks-uri jwt-role-mapping jwt-role-claim",
			"the one key is --api-key: put a proxy that checks others in front of it",
		},
		{
			"words", "control-plane-api-keys tenant-api-key",
			"the one key is --api-key: put a proxy that checks others in front of it",
		},
		{"bool", "epd-disaggregation", "there are no encode workers"},
		{"words", "encode", "there are no encode workers"},
	} {
		for name := range strings.FieldsSeq(group.names) {
			add(name, &flagValue{typ: group.typ, words: group.typ == "words", parse: func(text string) error {
				if group.typ == "bool" {
					if on, err := strconv.ParseBool(text); err == nil && !on {
						return nil
					}
				}
				l.bad.add("--%s: not supported by this version; %s", name, group.why)
				return nil
			}}, "").Hidden = true
		}
	}
}
