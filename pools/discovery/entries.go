package discovery

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"sigs.k8s.io/yaml"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/registry"
)

// entry is a worker as the file has it.
type entry struct {
	URL                string            `json:"url"`
	WorkerType         string            `json:"worker_type"`
	BootstrapPort      jsontext.Value    `json:"bootstrap_port"`
	BootstrapHost      string            `json:"bootstrap_host"`
	ModelID            string            `json:"model_id"`
	APIKey             string            `json:"api_key"`
	APIKeyFile         string            `json:"api_key_file"`
	Priority           *int              `json:"priority"`
	Cost               *float64          `json:"cost"`
	Labels             map[string]string `json:"labels"`
	DisableHealthCheck bool              `json:"disable_health_check"`
}

// parse reads the text of a workers' file. keyFile reads a file that holds a key.
// No error shows a value: one may have been put into the wrong field.
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
func (e *entry) spec(keyFile func(path string) ([]byte, error)) (s registry.Spec, err error) {
	if s.URL, err = registry.ParseURL(e.URL); err != nil {
		return s, fmt.Errorf("url: %w", err)
	}
	s.Role = pd.Regular
	if e.WorkerType != "" {
		var known bool
		if s.Role, known = pd.ParseRole(e.WorkerType); !known {
			return s, errors.New("worker_type: want prefill, decode or regular")
		}
	}
	if s.Bootstrap, err = e.bootstrap(s.URL); err != nil {
		return s, err
	}
	if s.APIKey, err = e.key(keyFile); err != nil {
		return s, err
	}
	s.Priority, s.Cost = registry.DefaultPriority, registry.DefaultCost
	if e.Priority != nil {
		s.Priority = *e.Priority
	}
	if e.Cost != nil {
		s.Cost = *e.Cost
	}
	switch {
	case s.Priority < 0:
		return s, errors.New("priority: want a whole number from 0 up")
	case s.Cost < 0 || s.Cost > math.MaxFloat32:
		return s, errors.New("cost: want a number from 0 up")
	}
	s.Model, s.Labels, s.Unchecked = e.ModelID, e.Labels, e.DisableHealthCheck
	return s, nil
}

// bootstrap puts host and port together, as [registry.Spec] has them.
func (e *entry) bootstrap(url string) (string, error) {
	if kind := e.BootstrapPort.Kind(); kind == jsontext.KindInvalid || kind == jsontext.KindNull {
		if e.BootstrapHost != "" {
			return "", errors.New("bootstrap_host: is given without bootstrap_port")
		}
		return "", nil
	}
	at := string(bytes.Trim(e.BootstrapPort, `"`))
	if _, err := bootstrap.ParsePort(at); err != nil {
		return "", errors.New("bootstrap_port: want 1 to 65535, or none")
	}
	if e.BootstrapHost == "" {
		return at, nil
	}
	at = net.JoinHostPort(strings.Trim(e.BootstrapHost, "[]"), at)
	if _, _, err := bootstrap.Resolve(url, at); err != nil {
		return "", errors.New("bootstrap_host: want a host name or an address")
	}
	return at, nil
}

func (e *entry) key(keyFile func(path string) ([]byte, error)) (string, error) {
	field, key := "api_key", e.APIKey
	if e.APIKeyFile != "" {
		if key != "" {
			return "", errors.New("api_key_file: is given beside api_key")
		}
		text, err := keyFile(e.APIKeyFile)
		if err != nil {
			return "", fmt.Errorf("api_key_file: %w", err)
		}
		field, key = "api_key_file", string(bytes.TrimSpace(text))
		if key == "" {
			return "", errors.New("api_key_file: holds no key")
		}
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", errors.New(field + ": a key is printable ASCII on one line")
	}
	return key, nil
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
