package sglang

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
)

const someEvent = `{"index":1,"meta_info":{"input_token_logprobs":[]}}`

func TestPromptsAreWaitedFor(t *testing.T) {
	f := func(name string, index int, happens func(t *testing.T, p *prompts, leave func()), want bool, when time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPrompts()
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				start := time.Now()
				go happens(t, p, leave)
				assert.Equal(t, want, p.wait(ctx, index))
				assert.Equal(t, when, time.Since(start))
				synctest.Wait()
			})
		})
	}
	add := func(t *testing.T, p *prompts) { require.NoError(t, p.addEvent(pd.Generate, []byte(someEvent))) }
	f("until the item is in", 1, func(t *testing.T, p *prompts, _ func()) {
		time.Sleep(time.Second)
		add(t, p)
	}, true, time.Second)
	f("not by another item, until the end", 0, func(t *testing.T, p *prompts, _ func()) {
		add(t, p)
		time.Sleep(time.Second)
		p.end()
	}, false, time.Second)
	f("all of them, until the end", -1, func(t *testing.T, p *prompts, _ func()) {
		add(t, p)
		time.Sleep(time.Second)
		p.end()
	}, true, time.Second)
	f("until the leg is closed", 1, func(_ *testing.T, _ *prompts, leave func()) {
		time.Sleep(time.Second)
		leave()
	}, false, time.Second)
	f("a whole body has every item", 1, func(t *testing.T, p *prompts, _ func()) {
		require.NoError(t, p.setBody(pd.Generate, []byte(`[`+someEvent+`,`+someEvent+`]`)))
	}, true, 0)
}

func TestPromptsAreComplete(t *testing.T) {
	p := newPrompts()
	assert.True(t, p.complete(0, false))
	assert.False(t, p.complete(2, false))
	require.NoError(t, p.addEvent(pd.Chat, []byte(`{"choices":[{"index":0}]}`)))
	assert.False(t, p.complete(2, false))
	require.NoError(t, p.addEvent(pd.Chat, []byte(`{"choices":[{"index":1}]}`)))
	assert.True(t, p.complete(2, false))
	assert.False(t, p.complete(2, true), "the routed experts are still to come")
	require.NoError(t, p.addEvent(pd.Chat, []byte(`{"choices":[],"sglext":{"routed_experts":"AAAA"}}`)))
	assert.True(t, p.complete(2, true))
	require.Error(t, p.addEvent(pd.Chat, []byte(`{"choices":`)))
	require.Error(t, p.setBody(pd.Generate, []byte(`{`)))
	(*prompts)(nil).end()
}
