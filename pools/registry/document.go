package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
)

// Document is a worker as operators write it, in the admin API, in the file of
// workers and in the state file: by the gateway's names.
type Document struct {
	URL  string `json:"url"`
	Type string `json:"worker_type,omitempty"` // prefill, decode, or regular if empty
	// BootstrapPort is a number, "none", or null for what the engine says.
	BootstrapPort json.RawMessage `json:"bootstrap_port,omitempty"`
	// BootstrapHost is the host of the bootstrap server where it is not the URL's.
	BootstrapHost string            `json:"bootstrap_host,omitempty"`
	ModelID       string            `json:"model_id,omitempty"`
	APIKey        string            `json:"api_key,omitempty"`
	Priority      *int              `json:"priority,omitempty"`
	Cost          *float64          `json:"cost,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Unchecked     bool              `json:"disable_health_check,omitempty"`
}

// Spec is what the document says. The error names the field and shows nothing of
// what may be a secret.
func (d *Document) Spec() (Spec, error) {
	if d.URL == "" {
		return Spec{}, fieldError("url", errors.New("it is needed"))
	}
	url, err := ParseURL(d.URL)
	if err != nil {
		return Spec{}, fieldError("url", err)
	}
	spec := Spec{
		URL: url, Role: pd.Regular, Model: d.ModelID, APIKey: d.APIKey,
		Priority: DefaultPriority, Cost: DefaultCost, Unchecked: d.Unchecked,
	}
	if len(d.Labels) > 0 {
		spec.Labels = maps.Clone(d.Labels)
	}
	if d.Type != "" {
		role, ok := pd.ParseRole(d.Type)
		if !ok {
			return Spec{}, fieldError("worker_type", errors.New("want prefill, decode or regular"))
		}
		spec.Role = role
	}
	if spec.Bootstrap, err = d.bootstrap(); err != nil {
		return Spec{}, err
	}
	if spec.Bootstrap != "" && spec.Role != pd.Prefill {
		return Spec{}, fieldError("bootstrap_port", errors.New("only a prefill worker has a bootstrap server"))
	}
	if _, _, err := bootstrap.Resolve(url, spec.Bootstrap); err != nil {
		return Spec{}, fieldError("bootstrap_port", err)
	}
	if d.Priority != nil {
		spec.Priority = *d.Priority
	}
	if d.Cost != nil {
		spec.Cost = *d.Cost
	}
	if err := spec.check(); err != nil {
		return Spec{}, err
	}
	return spec, nil
}

// maxLabels bounds a worker's labels, in bytes: they are in every list of workers.
const maxLabels = 16 << 10

// check refuses what is too long to be shown, and a key that no header can carry.
func (s *Spec) check() error {
	labels := 0
	for name, value := range s.Labels {
		labels += len(name) + len(value)
	}
	switch {
	case len(s.Model) > maxName:
		return fieldError("model_id", fmt.Errorf("want at most %d bytes", maxName))
	case labels > maxLabels:
		return fieldError("labels", fmt.Errorf("want at most %d bytes in all", maxLabels))
	}
	if err := checkKey(s.APIKey); err != nil {
		return fieldError("api_key", err)
	}
	return nil
}

// bootstrap is the address as [bootstrap.Resolve] takes it.
func (d *Document) bootstrap() (string, error) {
	text := string(bytes.TrimSpace(d.BootstrapPort))
	switch {
	case text == "" || text == "null":
		if d.BootstrapHost != "" {
			return "", fieldError("bootstrap_host", errors.New("it needs a bootstrap_port"))
		}
		return "", nil
	case text[0] == '"':
		if err := json.Unmarshal(d.BootstrapPort, &text); err != nil {
			return "", fieldError("bootstrap_port", errors.New("want a number or none"))
		}
	}
	port, err := bootstrap.ParsePort(text)
	if err != nil {
		return "", fieldError("bootstrap_port", errors.New("want a number from 1 to 65535, or none"))
	}
	if text = strconv.Itoa(port); port == 0 {
		text = "none"
	}
	if d.BootstrapHost == "" {
		return text, nil
	}
	host := d.BootstrapHost
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	return host + ":" + text, nil
}

// documentOf undoes Spec.
func documentOf(s *Spec) Document {
	d := Document{
		URL: s.URL, Type: s.Role.String(), ModelID: s.Model, APIKey: s.APIKey, Priority: &s.Priority, Cost: &s.Cost,
		Labels: s.Labels, Unchecked: s.Unchecked,
	}
	if s.Bootstrap != "" {
		port := s.Bootstrap
		if i := strings.LastIndexByte(port, ':'); i >= 0 {
			d.BootstrapHost, port = port[:i], port[i+1:]
		}
		if port == "none" {
			port = `"none"`
		}
		d.BootstrapPort = json.RawMessage(port)
	}
	return d
}

// checkKey refuses what no header can carry.
func checkKey(key string) error {
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("it holds a character that no header can carry")
	}
	return nil
}

// FieldError is a mistake in one field of a document.
type FieldError struct {
	Field string
	Err   error
}

func fieldError(field string, err error) error { return &FieldError{field, err} }

// Error names the field.
func (e *FieldError) Error() string { return fmt.Sprintf("%s: %v", e.Field, e.Err) }

// Unwrap is the mistake.
func (e *FieldError) Unwrap() error { return e.Err }
