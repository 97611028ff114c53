package cases

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// operations are the endpoints beside those that generate.
func operations() []Case {
	table := []Case{
		{"lists the engines' model", func(t *testing.T, b Backend) {
			var list struct {
				Object string `json:"object"`
				Data   []struct {
					ID string `json:"id"`
				} `json:"data"`
			}
			Get(t, b.Router+"/v1/models").Into(t, &list)
			assert.Equal(t, "list", list.Object)
			require.Len(t, list.Data, 1, "both engines serve one model")
			assert.NotEmpty(t, list.Data[0].ID)
		}},
		{"describes the engines of both roles, without their addresses", func(t *testing.T, b Backend) {
			answer := Get(t, b.Router+"/server_info")
			var info struct {
				Prefill []json.RawMessage `json:"prefill"`
				Decode  []json.RawMessage `json:"decode"`
			}
			answer.Into(t, &info)
			assert.Len(t, info.Prefill, 1)
			assert.Len(t, info.Decode, 1)
			for _, engine := range []string{b.Prefill, b.Decode} {
				assert.NotContains(t, string(answer.Body), strings.TrimPrefix(engine, "http://"))
			}
		}},
		{"empties the engines' caches when they are idle", func(t *testing.T, b Backend) {
			RequireIdle(t, b, idleWithin)
			answer := Post(t, b.Router+"/flush_cache", "")
			assert.Equal(t, http.StatusOK, answer.Status, "%.500s", answer.Body)
		}},
		{"counts the tokens of a text", func(t *testing.T, b Backend) {
			var counted struct {
				Tokens []int `json:"tokens"`
				Count  int   `json:"count"`
			}
			Post(t, b.Router+"/v1/tokenize", Body{"model": "tiny", "prompt": "Hello"}).Into(t, &counted)
			assert.Positive(t, counted.Count)
			assert.Len(t, counted.Tokens, counted.Count)
		}},
	}
	for _, path := range []string{"/health", "/liveness", "/readiness", "/health_generate", "/model_info", "/get_loads"} {
		table = append(table, Case{"answers " + path, func(t *testing.T, b Backend) {
			assert.Equal(t, http.StatusOK, Get(t, b.Router+path).Status)
		}})
	}
	return table
}
