package simengine

// logprobFields are the members of meta_info that return_logprob asks for.
// Those of the prompt do not come from decode, which never saw it.
func (c *call) logprobFields(j *jsonBuilder, it *item, n, from int) {
	decode := it.role == Decode
	start := it.lp.start
	if decode || start < 0 {
		start = len(it.prompt)
	}
	w := &logprobWriter{j: j, it: it, start: start, prompt: it.prompt[min(start, len(it.prompt)):], from: from, output: it.out.ids(from, n)}
	w.tokens(n)
	if it.lp.top > 0 {
		w.top()
	}
	if it.lp.tokenIDs != nil {
		// The metadata does not carry these of the first token: decode has a null.
		w.asked(decode && it.host != fakeHost)
	}
}

// logprobWriter writes lists with one entry for each token of the prompt, the
// first of which has no log probability, and of the output.
type logprobWriter struct {
	j      *jsonBuilder
	it     *item
	start  int   // position of the prompt's first token here
	prompt []int // ids from there on
	from   int   // place in the output of its first token here
	output []int // ids from there on
}

func (w *logprobWriter) ofPrompt(key string, none func(id int), entry func(pos, id int)) {
	w.j.key(key)
	w.j.open('[')
	for i, id := range w.prompt {
		if i == 0 {
			none(id)
			continue
		}
		entry(w.start+i, id)
	}
	w.j.close(']')
}

func (w *logprobWriter) ofOutput(key string, entry func(pos, id int)) {
	w.j.key(key)
	w.j.open('[')
	for i, id := range w.output {
		entry(len(w.it.prompt)+w.from+i, id)
	}
	w.j.close(']')
}

func (w *logprobWriter) null(int) { w.j.null() }

// tokens are the entries of the tokens themselves, n of which have been made.
func (w *logprobWriter) tokens(n int) {
	entry := func(pos, id int) {
		lp := logprob(w.it.hash, pos, id)
		w.it.entry(w.j, &lp, id)
	}
	w.ofPrompt("input_token_logprobs", func(id int) { w.it.entry(w.j, nil, id) }, entry)
	w.ofOutput("output_token_logprobs", entry)
	w.j.kint("output_token_logprobs_length", int64(n))
}

// top are the entries of the likeliest tokens in each place.
func (w *logprobWriter) top() {
	entry := func(pos, id int) {
		ids, lps := topTokens(w.it.hash, pos, id, w.it.lp.top)
		w.it.entries(w.j, ids, lps)
	}
	w.ofPrompt("input_top_logprobs", w.null, entry)
	w.ofOutput("output_top_logprobs", entry)
}

// asked are the entries of the tokens that the request names. The output's first
// one may be missing.
func (w *logprobWriter) asked(missing bool) {
	entry := func(pos, _ int) {
		var lps []float64
		for _, id := range w.it.lp.tokenIDs {
			lps = append(lps, logprob(w.it.hash, pos, id))
		}
		w.it.entries(w.j, w.it.lp.tokenIDs, lps)
	}
	w.ofPrompt("input_token_ids_logprobs", w.null, entry)
	w.ofOutput("output_token_ids_logprobs", func(pos, id int) {
		if missing && pos == len(w.it.prompt) {
			w.j.null()
			return
		}
		entry(pos, id)
	})
}

// entry is [logprob, token id, text].
func (it *item) entry(j *jsonBuilder, lp *float64, id int) {
	j.open('[')
	if lp == nil {
		j.null()
	} else {
		j.float(*lp)
	}
	j.int(int64(id))
	if it.lp.text {
		j.str(Detokenize([]int{id}))
	} else {
		j.null()
	}
	j.close(']')
}

func (it *item) entries(j *jsonBuilder, ids []int, lps []float64) {
	j.open('[')
	for i, id := range ids {
		it.entry(j, &lps[i], id)
	}
	j.close(']')
}

// chatLogprobs is the logprobs member of a chat choice, for tokens [from, to).
func (it *item) chatLogprobs(j *jsonBuilder, from, to int) {
	if !it.lp.on || from >= to {
		j.null()
		return
	}
	hash := it.hash
	one := func(id int, lp float64) {
		j.kstr("token", Detokenize([]int{id}))
		j.key("bytes")
		j.open('[')
		for _, b := range []byte(piece(id)) {
			j.int(int64(b))
		}
		j.close(']')
		j.kfloat("logprob", lp)
	}
	j.raw(`{"content":[`)
	for i, id := range it.out.ids(from, to) {
		pos := len(it.prompt) + from + i
		j.open('{')
		one(id, logprob(hash, pos, id))
		j.key("top_logprobs")
		j.open('[')
		ids, lps := topTokens(hash, pos, id, it.lp.top)
		for k := range ids {
			j.open('{')
			one(ids[k], lps[k])
			j.close('}')
		}
		j.tail("]}")
	}
	j.tail("]}")
}

// completionLogprobs is the logprobs member of a completions choice: with echo
// the prompt's entries but on decode, then those of tokens [from, to).
func (it *item) completionLogprobs(j *jsonBuilder, from, to int, prompt bool) {
	if !it.lp.on {
		j.null()
		return
	}
	hash := it.hash
	var ids []int
	first := len(it.prompt) + from
	if prompt && it.role != Decode {
		ids, first = append(ids, it.prompt...), 0
	}
	ids = append(ids, it.out.ids(from, to)...)
	column := func(key string, value func(pos, id int)) {
		j.key(key)
		j.open('[')
		for i, id := range ids {
			value(first+i, id)
		}
		j.close(']')
	}
	j.open('{')
	column("text_offset", func(int, int) { j.int(-1) })
	column("token_logprobs", func(pos, id int) {
		if pos == 0 {
			j.null()
			return
		}
		j.float(logprob(hash, pos, id))
	})
	column("tokens", func(_, id int) { j.str(Detokenize([]int{id})) })
	column("top_logprobs", func(pos, id int) {
		if pos == 0 {
			j.null()
			return
		}
		j.open('{')
		top, lps := topTokens(hash, pos, id, it.lp.top)
		for k := range top {
			j.sep()
			j.b = append(appendString(j.b, Detokenize(top[k:k+1])), ':')
			j.float(lps[k])
		}
		j.close('}')
	})
	j.close('}')
}
