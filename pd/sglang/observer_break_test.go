package sglang

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

func TestAnErrorEventStandsByItself(t *testing.T) {
	req, err := pd.NewRequest(pd.Generate, []byte(`{"text":"a","stream":true}`))
	require.NoError(t, err)
	f := func(seen, want string) {
		t.Helper()
		o := NewObserver(req, true)
		o.See([]byte(seen))
		out, end := o.Break(nil, &pd.Error{Kind: pd.Lost}, []byte("data: e\n\n"))
		assert.Equal(t, want, string(out), seen)
		assert.Error(t, end)
	}
	f("", "data: e\n\n")
	f("data: {}\n\n", "data: e\n\n")
	f("data: {}\r\n\r\n", "data: e\n\n")
	f("data: {", "\n\ndata: e\n\n")
}
