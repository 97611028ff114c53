package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
	"github.com/tandem-pd/tandem/pools/registry"
)

// found is where workers are looked for while the router runs.
type found struct {
	file     string
	dns      []discovery.DNSName
	dnsEvery time.Duration

	kubernetes bool
	kubeconfig string
	pods       kubernetes.Options
}

func defaultFound() found {
	return found{dnsEvery: 30 * time.Second, pods: kubernetes.Options{Port: kubernetes.DefaultPort, Resync: kubernetes.DefaultResync}}
}

// any reports whether workers are looked for at all.
func (f *found) any() bool { return f.file != "" || len(f.dns) > 0 || f.kubernetes }

// addDiscovery adds the flags of where workers are found; those of Kubernetes by
// the gateway's names.
func (l *commandLine) addDiscovery(add addFlag) {
	f := &l.cfg.found
	add("worker-file", stringValue(&f.file), "YAML file of workers, watched for change")
	add("prefill-dns", dnsValue(&f.dns, pd.Prefill), "name whose addresses, or SRV records, are prefill workers, and the port of their bootstrap servers; repeatable")
	add("decode-dns", dnsValue(&f.dns, pd.Decode), "name whose addresses, or SRV records, are decode workers; repeatable")
	add("worker-dns", dnsValue(&f.dns, pd.Regular), "the same for whole engines; repeatable")
	add("dns-interval-secs", secondsValue(&f.dnsEvery, 1), "between two lookups of a name")
	add("service-discovery", boolValue(&f.kubernetes), "find workers among the pods of a Kubernetes cluster")
	add("selector", labelsValue(&f.pods.Selector), "labels of the pods that are whole engines, key=value, all of them")
	add("prefill-selector", labelsValue(&f.pods.PrefillSelector), "labels of the pods that are prefill workers")
	add("decode-selector", labelsValue(&f.pods.DecodeSelector), "labels of the pods that are decode workers")
	add("service-discovery-port", numberValue(&f.pods.Port, 1, 65535), "port of the pods' engines")
	add("service-discovery-namespace", stringValue(&f.pods.Namespace), "the one namespace to look in; all if not given")
	add("service-discovery-interval-secs", secondsValue(&f.pods.Resync, 1), "between two whole lists of the pods, whatever is watched meanwhile")
	add("kubeconfig", stringValue(&f.kubeconfig), "how to reach the cluster from outside of it; KUBECONFIG, or what a pod is given, by default")
	add("state-file", stringValue(&l.cfg.stateFile), "where the workers that were added by the admin API are kept over a restart")
}

// dnsValue is a name, and for prefills the port of their bootstrap servers.
func dnsValue(dst *[]discovery.DNSName, role pd.Role) *flagValue {
	return &flagValue{typ: "URL", words: role == pd.Prefill, parse: func(text string) error {
		name, err := discovery.ParseDNS(text, role)
		if err != nil {
			return err
		}
		*dst = append(*dst, name)
		return nil
	}}
}

// labelsValue are labels. The last ones given count.
func labelsValue(dst *map[string]string) *flagValue {
	return &flagValue{typ: "key=value", words: true, parse: func(text string) error {
		labels := make(map[string]string)
		for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ' ' || r == ',' }) {
			key, value, ok := strings.Cut(word, "=")
			if !ok || key == "" {
				return errors.New("want key=value")
			}
			labels[key] = value
		}
		*dst = labels
		return nil
	}}
}

// checkDiscovery finds what of these flags does not fit together. A source is asked
// for by its own flag alone.
func (l *commandLine) checkDiscovery() {
	f := &l.cfg.found
	if l.cfg.dpAware && (l.cfg.failure.health.off || l.cfg.miniLB) {
		l.bad.add("--dp-aware: engines are asked for their ranks where their health is, which is off")
	}
	if !f.kubernetes {
		for _, name := range []string{"selector", "prefill-selector", "decode-selector", "service-discovery-port", "service-discovery-namespace", "kubeconfig"} {
			if l.flags.Changed(name) {
				l.cfg.warn("--%s has no effect without --service-discovery", name)
			}
		}
		return
	}
	switch inPairs := !l.cfg.regular; {
	case inPairs && len(f.pods.PrefillSelector) == 0 && len(f.pods.DecodeSelector) == 0:
		l.bad.add("--service-discovery: --prefill-selector or --decode-selector is needed")
	case inPairs && len(f.pods.Selector) > 0:
		l.bad.add("--selector: whole engines have no place among pairs: want --prefill-selector and --decode-selector")
	case !inPairs && len(f.pods.PrefillSelector)+len(f.pods.DecodeSelector) > 0:
		l.bad.add("--prefill-selector, --decode-selector: they are for --pd-disaggregation")
	case !inPairs && len(f.pods.Selector) == 0:
		l.bad.add("--service-discovery: --selector is needed")
	}
}

// sources makes the sources that are asked for. What goes wrong with one later is
// logged, once for as long as it is the same, and shown by the registry.
func (f *found) sources(cfg *config, log zerolog.Logger, reg *registry.Registry) ([]registry.Source, error) {
	var out []registry.Source
	trouble := func(source string, log zerolog.Logger) func(error) {
		return func(err error) {
			reg.Trouble(source, err)
			if err == nil {
				log.Info().Str("source", source).Msg("a source of workers is well again")
				return
			}
			log.Warn().Str("source", source).Err(err).Msg("a source of workers is in trouble: what it said last goes on")
		}
	}
	if f.file != "" {
		file, err := discovery.NewFile(f.file, discovery.FileOptions{Report: trouble("file", log)})
		if err != nil {
			return nil, err
		}
		out = append(out, file)
	}
	if len(f.dns) > 0 {
		out = append(out, &discovery.DNS{Names: f.dns, Every: f.dnsEvery, Report: trouble("dns", log)})
	}
	if f.kubernetes {
		access, err := kubernetes.Config(f.kubeconfig)
		if err != nil {
			return nil, err
		}
		opt := f.pods
		if !cfg.regular {
			opt.Selector = nil
		}
		opt.Report = trouble("kubernetes", log.Sample(&zerolog.BurstSampler{Burst: 1, Period: 10 * time.Second})) // it reports each call that fails
		opt.Discovered = func(n int) { log.Debug().Int("workers", n).Msg("pods listed") }
		pods, err := kubernetes.New(access, opt)
		if err != nil {
			return nil, err
		}
		out = append(out, pods)
	}
	for i, source := range out {
		out[i] = &keyed{source, cfg.apiKey, cfg.workerKey}
	}
	return out, nil
}

// keyed gives workers that were found the router's own key, as the gateway does,
// where they have none and none is set for all.
type keyed struct {
	registry.Source
	key, all string
}

// Run implements [registry.Source].
func (k *keyed) Run(ctx context.Context, apply func([]registry.Spec)) error {
	if k.key == "" || k.all != "" {
		return k.Source.Run(ctx, apply)
	}
	return k.Source.Run(ctx, func(specs []registry.Spec) {
		specs = slices.Clone(specs)
		for i := range specs {
			if specs[i].APIKey == "" {
				specs[i].APIKey = k.key
			}
		}
		apply(specs)
	})
}
