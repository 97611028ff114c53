package discovery

import "github.com/tandem-pd/tandem/pools/registry"

// Bounds, for tests to reach.
const (
	MaxFile      = maxFile
	MaxKey       = maxKey
	MaxAddresses = maxAddresses
	Patience     = patience
)

// Parse reads the text of a workers' file.
func Parse(text []byte, keyFile func(path string) ([]byte, error)) ([]registry.Spec, error) {
	return parse(text, keyFile)
}
