package simengine

// maxSamples bounds n on a whole engine.
const maxSamples = 128

// errNoEmbedding is what an engine says that serves a generation model in
// prefill/decode mode.
const errNoEmbedding = valueError("This model does not appear to be an embedding model by default. " +
	"Please add `--is-embedding` when launching the server or try another model.")

// accepts refuses what an engine of the role does not do at all.
func (r *request) accepts(role Role) error {
	switch {
	case role == Regular && r.n > maxSamples:
		return valueError("n is more than an engine takes at once.")
	case role == Regular:
		return nil
	case r.ep == epEmbeddings, r.ep == epRerank, r.ep == epClassify:
		return errNoEmbedding
	}
	return nil
}

// sample makes n items of every item, prompt by prompt. They have rids of their
// own, and each its own seed.
func (r *request) sample() {
	if r.n <= 1 {
		return
	}
	var items []*item
	for _, it := range r.items {
		for j := range r.n {
			s := &item{
				index: len(items), rid: newID(), prompt: it.prompt, text: it.text,
				params: it.params, lp: it.lp, forced: it.forced, hash: it.hash,
			}
			s.params.Seed += int64(j)
			items = append(items, s)
		}
	}
	r.items, r.sampled, r.batch = items, true, true
}

// samples is how many items there are of each prompt.
func (r *request) samples() int {
	if r.sampled {
		return r.n
	}
	return 1
}

// regularItem waits for KV space, computes the prompt and generates. progress is
// told of every token but the last.
func (l *life) regularItem(it *item, progress func(tokens int)) end {
	it.enter(statePrealloc)
	need := min(len(it.prompt)+it.params.MaxNewTokens, l.cfg.MaxTotalTokens)
	if !l.budget.take(it.ctx, nil, need) {
		return it.notComputed()
	}
	defer l.budget.give(need)
	l.used.Add(int64(need))
	defer l.used.Add(-int64(need))
	if err := it.kills(); err != nil {
		l.crash(err)
		return end{gone: true}
	}
	if e := l.compute(it); e.aborted || e.gone {
		return e
	}
	it.out = generate(it.hash, it.params)
	return l.generate(it, progress)
}
