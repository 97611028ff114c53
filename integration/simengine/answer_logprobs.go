package simengine

// logprobFields are the members of meta_info that return_logprob asks for.
// Those of the prompt come from prefill only: decode never saw the prompt.
func (c *call) logprobFields(j *jsonBuilder, it *item, n, from int) {
	prefill := c.l.cfg.Role == Prefill
	hash := it.hash
	ids := it.out.ids(from, n)
	start := it.lp.start
	if !prefill || start < 0 {
		start = len(it.prompt)
	}
	prompt := it.prompt[min(start, len(it.prompt)):]
	input := func(key string, entry func(i, id int)) {
		j.key(key)
		j.open('[')
		for i, id := range prompt {
			entry(i, id)
		}
		j.close(']')
	}
	output := func(key string, entry func(pos, id int)) {
		j.key(key)
		j.open('[')
		for i, id := range ids {
			entry(len(it.prompt)+from+i, id)
		}
		j.close(']')
	}
	input("input_token_logprobs", func(i, id int) {
		if i == 0 {
			it.entry(j, nil, id)
			return
		}
		lp := logprob(hash, start+i, id)
		it.entry(j, &lp, id)
	})
	output("output_token_logprobs", func(pos, id int) {
		lp := logprob(hash, pos, id)
		it.entry(j, &lp, id)
	})
	j.kint("output_token_logprobs_length", int64(n))
	if it.lp.top > 0 {
		top := func(pos, id int) {
			ids, lps := topTokens(hash, pos, id, it.lp.top)
			it.entries(j, ids, lps)
		}
		input("input_top_logprobs", func(i, id int) {
			if i == 0 {
				j.null()
				return
			}
			top(start+i, id)
		})
		output("output_top_logprobs", top)
	}
	if it.lp.tokenIDs == nil {
		return
	}
	asked := func(pos int) {
		var lps []float64
		for _, id := range it.lp.tokenIDs {
			lps = append(lps, logprob(hash, pos, id))
		}
		it.entries(j, it.lp.tokenIDs, lps)
	}
	input("input_token_ids_logprobs", func(i, _ int) {
		if i == 0 {
			j.null()
			return
		}
		asked(start + i)
	})
	// The metadata does not carry these of the first token: decode has a null.
	missing := -1
	if !prefill && it.host != fakeHost {
		missing = len(it.prompt)
	}
	output("output_token_ids_logprobs", func(pos, _ int) {
		if pos == missing {
			j.null()
			return
		}
		asked(pos)
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
// the prompt's entries on prefill, then those of tokens [from, to).
func (it *item) completionLogprobs(j *jsonBuilder, from, to int, prompt bool) {
	if !it.lp.on {
		j.null()
		return
	}
	hash := it.hash
	var ids []int
	first := len(it.prompt) + from
	if prompt && it.l.cfg.Role == Prefill {
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
