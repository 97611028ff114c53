package integration

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/tandem-pd/tandem"

// mayImport says what a package may import of ours and which modules of others;
// a key that ends in /* covers the packages below it that have no key of their
// own. Packages without a key may import anything.
var mayImport = map[string][]string{
	"bootstrap":               nil,
	"pd/sse":                  nil,
	"pd/patch":                {"github.com/go-json-experiment/json"},
	"pd":                      {"pd/patch", "pd/sse", "golang.org/x/sync"},
	"pd/legs":                 {"pd", "pd/sse", "golang.org/x/sync"},
	"pd/sglang":               {"pd", "pd/legs", "pd/patch", "pd/sse", "bootstrap", "golang.org/x/sync", "github.com/go-json-experiment/json"},
	"pd/single":               {"pd", "pd/legs", "pd/patch", "pd/sse", "pd/sglang", "golang.org/x/sync"},
	"pools":                   {"pd", "golang.org/x/sync", "github.com/sony/gobreaker/v2"},
	"pools/*":                 {"pools", "pd"},
	"pools/kvindex":           nil,
	"pools/policy":            {"pools", "pd", "pools/kvindex"},
	"pools/policy/redisstore": {"pd", "github.com/redis/go-redis/v9"},
	"pools/health":            {"pools", "pd", "bootstrap", "golang.org/x/sync"},
	"pools/registry":          {"pools", "pd", "bootstrap", "github.com/google/uuid"},
	"pools/discovery": {
		"pd", "pools/registry", "bootstrap", "sigs.k8s.io/yaml", "github.com/go-json-experiment/json",
	},
	"pools/discovery/kubernetes": {"pd", "pools/registry", "bootstrap", "k8s.io", "github.com/go-logr/logr"},
	"router": {
		"pd", "pools", "pools/registry", "github.com/gofiber/fiber/v2", "github.com/valyala/fasthttp", "github.com/rs/zerolog", "golang.org/x/sys",
		"golang.org/x/sync", "golang.org/x/time", "github.com/go-json-experiment/json",
	},
	"integration/simengine": nil,
	"integration/load/*":    {"integration/load/*"},
}

func TestPackagesImportWhatTheyMay(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", module+"/...").Output()
	require.NoError(t, err)
	seen := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var pkg struct {
			ImportPath string
			Imports    []string
		}
		require.NoError(t, dec.Decode(&pkg))
		name := strings.TrimPrefix(pkg.ImportPath, module+"/")
		allowed, ruled := rule(name)
		if ruled {
			seen++
		}
		for _, path := range pkg.Imports {
			ours, isOurs := strings.CutPrefix(path, module+"/")
			assert.False(t, isOurs && strings.HasPrefix(ours, "cmd/"), "%s imports the command %s", name, ours)
			if !ruled || !strings.Contains(strings.SplitN(path, "/", 2)[0], ".") {
				continue // no rule, or the standard library
			}
			if isOurs {
				path = ours
			}
			ok := slices.ContainsFunc(allowed, func(a string) bool {
				if prefix, all := strings.CutSuffix(a, "/*"); all {
					return strings.HasPrefix(path, prefix+"/")
				}
				return path == a || (!isOurs && strings.HasPrefix(path, a+"/"))
			})
			assert.True(t, ok, "%s may not import %s", name, path)
		}
	}
	assert.GreaterOrEqual(t, seen, 10, "the rules cover the packages they are meant for")
}

func rule(name string) ([]string, bool) {
	if allowed, ok := mayImport[name]; ok {
		return allowed, true
	}
	for key, allowed := range mayImport {
		if prefix, all := strings.CutSuffix(key, "/*"); all && strings.HasPrefix(name, prefix+"/") {
			return allowed, true
		}
	}
	return nil, false
}
