package discovery

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"sigs.k8s.io/yaml"

	"github.com/tandem-pd/tandem/pools/registry"
)

// entry is a worker as the file has it.
type entry struct {
	registry.Document
	APIKeyFile string `json:"api_key_file"`
}

// parse reads the text of a workers' file. keyFile reads a file that holds a key.
// No error shows a key.
func parse(text []byte, keyFile func(path string) ([]byte, error)) ([]registry.Spec, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("is empty; that there are no workers is written as workers: []")
	}
	if line := secondDocument(text); line > 0 {
		return nil, fmt.Errorf("line %d: a second YAML document starts; want one", line)
	}
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, syntaxError(err)
	}
	var file struct {
		Workers *[]entry `json:"workers"`
	}
	if err := json.Unmarshal(converted, &file, json.RejectUnknownMembers(true)); err != nil {
		return nil, fieldError(err)
	}
	if file.Workers == nil {
		return nil, errors.New("workers: is missing; that there are none is written as workers: []")
	}
	specs := make([]registry.Spec, 0, len(*file.Workers))
	entries := map[string]int{} // by URL
	for i, e := range *file.Workers {
		spec, err := e.spec(keyFile)
		if err != nil {
			return nil, fmt.Errorf("workers[%d].%w", i, err)
		}
		if first, twice := entries[spec.URL]; twice {
			return nil, fmt.Errorf("workers[%d].url: is that of workers[%d]", i, first)
		}
		entries[spec.URL] = i
		specs = append(specs, spec)
	}
	return specs, nil
}

// spec is the worker that e describes. Its errors start with the field.
func (e *entry) spec(keyFile func(path string) ([]byte, error)) (registry.Spec, error) {
	if e.APIKeyFile != "" {
		if e.APIKey != "" {
			return registry.Spec{}, errors.New("api_key_file: is given beside api_key")
		}
		text, err := keyFile(e.APIKeyFile)
		if err != nil {
			return registry.Spec{}, fmt.Errorf("api_key_file: %w", err)
		}
		if e.APIKey = string(bytes.TrimSpace(text)); e.APIKey == "" {
			return registry.Spec{}, errors.New("api_key_file: holds no key")
		}
	}
	return e.Spec()
}

// secondDocument is the line at which a second YAML document has content, which
// the parser would pass over in silence; 0 if there is none.
func secondDocument(text []byte) int {
	content, ended := false, false
	n := 0
	for line := range bytes.Lines(text) {
		n++
		marker := len(line) >= 3 && (string(line[:3]) == "---" || string(line[:3]) == "...") &&
			(len(line) == 3 || strings.ContainsRune(" \t\r\n", rune(line[3])))
		if marker {
			ended = ended || content
			line = line[3:]
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' || !content && line[0] == '%' {
			continue
		}
		if ended {
			return n
		}
		content = true
	}
	return 0
}

// harmless are the beginnings of those of the YAML parser's reasons that quote
// nothing.
var harmless = regexp.MustCompile(`^(did not find expected|could not find expected|found |mapping |block |control characters|exceeded max depth)`)

// yamlError parts an error of the YAML parser into the line, if it has one, and
// the reason.
var yamlError = regexp.MustCompile(`(?s)^yaml: (?:unmarshal errors:\n  )?(line \d+: )?(.*)`)

// syntaxError says of the YAML parser's error what holds nothing of the text.
func syntaxError(err error) error {
	m := yamlError.FindStringSubmatch(err.Error())
	switch {
	case m == nil:
		return errors.New("not valid YAML")
	case harmless.MatchString(m[2]):
		return fmt.Errorf("%snot valid YAML: %s", m[1], m[2])
	case strings.HasPrefix(m[2], "key ") && strings.Contains(m[2], "already set in map"):
		return fmt.Errorf("%sa name is given twice", m[1])
	default:
		return fmt.Errorf("%snot valid YAML", m[1])
	}
}

// fieldName is what a field's name may look like to be shown: what does not may
// be a key in the wrong place.
var fieldName = regexp.MustCompile(`^[A-Za-z_-]{1,40}$`)

// fieldError says which field is not one, or not of the kind that it must be.
func fieldError(err error) error {
	semantic, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return errors.New("not valid YAML")
	}
	what := "want " + wanted(semantic.GoType)
	if errors.Is(err, json.ErrUnknownName) {
		what = "unknown field"
	}
	var path strings.Builder
	for token := range semantic.JSONPointer.Tokens() {
		switch _, err := strconv.ParseUint(token, 10, 32); {
		case err == nil:
			path.WriteString("[" + token + "]")
			continue
		case !fieldName.MatchString(token):
			token = "(a name with other characters)"
		}
		if path.Len() > 0 {
			path.WriteByte('.')
		}
		path.WriteString(token)
	}
	if path.Len() == 0 {
		return errors.New(what)
	}
	return fmt.Errorf("%s: %s", path.String(), what)
}

func wanted(t reflect.Type) string {
	if t == nil {
		return "something else"
	}
	switch t.Kind() {
	case reflect.String:
		return "a text, in quotes if it looks like something else"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	default:
		return "names with values"
	}
}
