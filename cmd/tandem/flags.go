package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/policy"
	"github.com/tandem-pd/tandem/pools/registry"
)

// gatewayPolicies are policies of SGLang's gateways that Tandem does not have;
// the default stands in for them.
func gatewayPolicies() []string { return []string{"least_load", "load_based", "passthrough"} }

// commandLine is the serve command's flags, and what was given.
type commandLine struct {
	cfg   *config
	bad   mistakes
	flags *pflag.FlagSet

	pdMode         bool
	workerURLs     []string
	policy         string
	prefillPolicy  string
	decodePolicy   string
	backend        string
	abortMode      string
	files          tlsFiles
	group          string   // of the flags that are being added
	groups         []string // in their order
	withoutMeaning []string // flags given that do nothing, in their order
}

func newCommandLine() *commandLine {
	return &commandLine{cfg: defaultConfig(), policy: policy.Default, backend: "sglang", abortMode: "abort"}
}

// register adds every flag: those that are acted on, and hidden in the usage
// text those of the gateways that are accepted or refused.
func (l *commandLine) register(fs *pflag.FlagSet) {
	fs.SortFlags = false
	l.flags = fs
	fs.BoolP("version", "V", false, "print the version")
	add := func(name string, v *flagValue, usage string) *pflag.Flag {
		v.name, v.bad = name, &l.bad
		f := fs.VarPF(v, name, "", usage)
		f.Annotations = map[string][]string{groupOf: {l.group}}
		if v.typ == "bool" {
			f.NoOptDefVal = "true"
		}
		return f
	}
	for _, g := range []struct {
		name string
		add  func(addFlag)
	}{
		{"Serving", l.addServing},
		{"Finding workers", l.addDiscovery},
		{"Choosing workers", l.addPolicies},
		{"Bounds and deadlines", l.addBounds},
		{"Failures and admission", l.addFailure},
		{"Keys", l.addKeys},
		{"TLS", l.addTLS},
		{"", l.addWithoutMeaning},
		{"", l.addRefused},
	} {
		l.group = g.name
		if g.name != "" {
			l.groups = append(l.groups, g.name)
		}
		g.add(add)
	}
}

// groupOf annotates a flag with the group that the usage text shows it in.
const groupOf = "group"

// usages is the usage text of the flags, by group.
func (l *commandLine) usages() string {
	var text strings.Builder
	for _, name := range append(l.groups, "Other") {
		group := pflag.NewFlagSet(name, pflag.ContinueOnError)
		group.SortFlags = false
		l.flags.VisitAll(func(f *pflag.Flag) {
			if of := f.Annotations[groupOf]; of == nil && name == "Other" || of != nil && of[0] == name {
				group.AddFlag(f)
			}
		})
		fmt.Fprintf(&text, "\n%s:\n%s", name, group.FlagUsagesWrapped(120))
	}
	return text.String()
}

type addFlag func(name string, v *flagValue, usage string) *pflag.Flag

func (l *commandLine) addServing(add addFlag) {
	c := l.cfg
	policies := append(policyNames(), gatewayPolicies()...)
	add("pd-disaggregation", boolValue(&l.pdMode), "route to prefill/decode pairs; so do --prefill and --decode")
	add("prefill", prefillValue(&c.prefill), "a prefill worker and the port of its bootstrap server; once for each")
	add("decode", decodeValue(&c.decode), "a decode worker; once for each")
	add("worker-urls", urlsValue(&l.workerURLs), "whole engines, instead of pairs: each gets the requests that it is chosen for, unchanged")
	add("host", stringValue(&c.host), "name or address to listen on")
	add("port", numberValue(&c.port, 0, 65535), "port to listen on; 0 takes a free one")
	add("policy", choiceValue(&l.policy, policies...), "how a worker is chosen: "+policyHelp())
	add("prefill-policy", choiceValue(&l.prefillPolicy, policies...), "the policy for prefill (default --policy)")
	add("decode-policy", choiceValue(&l.decodePolicy, policies...), "the policy for decode (default --policy)")
	add("request-id-headers", wordsValue(&c.requestIDHeaders), "headers that may name a request; the first present counts")
	add("abort-mode", choiceValue(&l.abortMode, "abort", "close"), "how an engine is freed: abort tells it and closes, close only closes")
	add("log-level", choiceValue(&c.logLevel, "debug", "info", "warn", "error"), "what is logged: debug, info, warn, error")
	add("log-dir", stringValue(&c.logDir), "directory for a copy of the log, tandem.log")
	add("mini-lb", boolValue(&c.miniLB), "a line on stdout for each request sent to a pair; the policy is random, nothing is tried again")
	add("test-external-dp-routing", boolValue(&c.externalDP), "with --mini-lb: name a random data-parallel rank for each leg")
	add("backend", choiceValue(&l.backend, "sglang"), "the engines' kind").Hidden = true
}

// maxBytes is the most that a bound in bytes may be: one that is added to must
// not overflow.
const maxBytes = 1 << 40

func (l *commandLine) addBounds(add addFlag) {
	c := l.cfg
	add("max-payload-size", numberValue(&c.maxPayload, 1, maxBytes), "bytes of one request's body")
	add("max-body-memory", numberValue(&c.maxBodyMemory, 1, maxBytes), "bytes of all bodies held at once")
	add("max-event-size", numberValue(&c.maxEvent, 1, 1<<30), "bytes of an event or answer that must be held whole")
	add("max-n", numberValue(&c.maxSamples, 1, 1<<20), "samples that one request may ask for")
	add("connect-timeout", durationValue(&c.connect), "to connect to a worker")
	add("request-timeout-secs", secondsValue(&c.request, 1), "for prefill's answer, and for the whole of one that is not streamed")
	add("first-event-timeout", durationValue(&c.firstEvent), "for decode's first event, counted from prefill's answer")
	add("stream-idle-timeout", durationValue(&c.streamIdle), "between two reads of a stream")
	add("write-stall-timeout", durationValue(&c.writeStall), "for a client that takes nothing")
	add("drain-settle-secs", secondsValue(&c.settle, 0), "from SIGTERM, not ready but still accepting; SIGINT skips it")
	add("shutdown-grace-period-secs", secondsValue(&c.grace, 0), "then, for requests under way; a second signal cuts it short")
}

// withoutUnknown notes the flags that do not exist and takes them out of args,
// with the words behind them: the parser would stop at the first.
func (l *commandLine) withoutUnknown(args []string) []string {
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(out, args[i:]...)
		}
		name, long := strings.CutPrefix(args[i], "--")
		name, _, _ = strings.Cut(name, "=")
		if !long || l.flags.Lookup(name) != nil {
			out = append(out, args[i])
			continue
		}
		l.bad.add("%s", unknownFlag(name, l.flags))
		for i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			i++
		}
	}
	return out
}

// config checks what was given, all of it, and returns what to build. args are
// the words that belong to no flag.
func (l *commandLine) config(args []string) (*config, error) {
	c := l.cfg
	for _, arg := range args {
		l.bad.add("%s", unexpected(arg))
	}
	l.checkWorkers()
	l.checkDiscovery()
	l.checkTLS()
	c.policy = l.policyOf("")
	c.prefillPolicy = l.policyOf(l.prefillPolicy)
	c.decodePolicy = l.policyOf(l.decodePolicy)
	l.warnOfPolicies()
	if c.miniLB {
		c.prefillPolicy, c.decodePolicy = "random", "random"
		c.failure.bare()
	}
	c.failure.settle()
	if c.externalDP && !c.miniLB {
		l.bad.add("--test-external-dp-routing: only with --mini-lb")
	}
	if len(c.requestIDHeaders) == 0 {
		l.bad.add(`--request-id-headers "": want at least one name`)
	}
	if len(l.withoutMeaning) > 0 {
		c.warn("these flags have no effect in this version: --%s", strings.Join(l.withoutMeaning, ", --"))
	}
	return c, l.bad.err()
}

// checkWorkers finds out whether the workers are pairs or whole engines, and what
// of that does not fit together.
func (l *commandLine) checkWorkers() {
	c := l.cfg
	c.regular = !l.pdMode && !c.miniLB && !l.anyChanged(pairFlags()...)
	if c.regular {
		l.checkRegular()
	} else {
		l.checkPairs()
	}
	for _, w := range c.workers() {
		w.APIKey = c.workerKey
	}
	c.closeOnly = l.abortMode == "close"
}

// pairFlags are the flags that make workers pairs without --pd-disaggregation.
func pairFlags() []string {
	return []string{"prefill", "decode", "prefill-dns", "decode-dns", "prefill-selector", "decode-selector"}
}

func (l *commandLine) anyChanged(names ...string) bool {
	return slices.ContainsFunc(names, l.flags.Changed)
}

func (l *commandLine) checkRegular() {
	c := l.cfg
	switch given := l.flags.Changed("worker-urls"); {
	case given && len(l.workerURLs) == 0:
		l.bad.add(`--worker-urls "": want at least one URL`)
	case !given && !c.found.any():
		l.bad.add("there are no workers: want --prefill and --decode, or --worker-urls, or where to find them (--worker-file, --prefill-dns, --service-discovery)")
	}
	for _, text := range l.workerURLs {
		base, err := registry.ParseURL(text)
		if err == nil {
			err = addWorker(&c.whole, &pd.Worker{Role: pd.Regular, URL: base})
		}
		if err != nil {
			l.bad.add("--worker-urls %q: %v", redact(text), err)
		}
	}
	for _, name := range []string{"prefill-policy", "decode-policy", "max-n", "first-event-timeout", "require-bootstrap"} {
		if l.flags.Changed(name) {
			l.withoutMeaning = append(l.withoutMeaning, name)
		}
	}
}

func (l *commandLine) checkPairs() {
	c := l.cfg
	switch {
	case !l.flags.Changed("worker-urls"):
	case l.pdMode: // as the gateway does
		c.warn("--worker-urls has no effect with --pd-disaggregation: whole engines have no place among pairs")
	case c.miniLB && !l.anyChanged(pairFlags()...):
		l.bad.add("--mini-lb: it is for pairs: want --prefill and --decode instead of --worker-urls")
		return
	default:
		l.bad.add("--worker-urls: want either whole engines or pairs, which --prefill and --decode are")
	}
	for _, role := range []string{"prefill", "decode"} {
		switch {
		case l.flags.Changed(role) || c.found.any():
		case l.pdMode && !c.miniLB:
			c.warn("no %s worker is given: until one is added with POST /workers, requests get 503", role)
		default:
			l.bad.add("--%s: at least one %s worker is needed", role, role)
		}
	}
	for _, p := range c.prefill {
		for _, d := range c.decode {
			if p.URL == d.URL {
				l.bad.add("--decode %q: this worker is given as --prefill too", d.URL)
			}
		}
	}
}

// policyOf is the policy of one role, own the name given for it.
func (l *commandLine) policyOf(own string) string {
	name := l.policy
	if own != "" {
		name = own
	}
	if slices.Contains(gatewayPolicies(), name) {
		return policy.Default
	}
	return name
}

// warnOfPolicies says, once, which policies asked for are not used.
func (l *commandLine) warnOfPolicies() {
	var notRandom bool
	var foreign []string
	for _, flag := range []struct{ name, value string }{
		{"policy", l.policy}, {"prefill-policy", l.prefillPolicy}, {"decode-policy", l.decodePolicy},
	} {
		if !l.flags.Changed(flag.name) {
			continue
		}
		notRandom = notRandom || flag.value != "random"
		if slices.Contains(gatewayPolicies(), flag.value) && !slices.Contains(foreign, flag.value) {
			foreign = append(foreign, flag.value)
		}
	}
	switch {
	case l.cfg.miniLB && notRandom:
		l.cfg.warn("with --mini-lb the policy is random, whatever is asked for")
	case !l.cfg.miniLB && len(foreign) > 0:
		l.cfg.warn("not in this version: policy %s; %s is used", strings.Join(foreign, ", "), policy.Default)
	}
}
