package router

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gofiber/fiber/v2"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/registry"
)

// workerBody bounds the body of a call that describes a worker, in bytes.
const workerBody = 1 << 20

// accepted is the answer to a change, which is under way.
type accepted struct {
	Status   string      `json:"status"`
	ID       pd.WorkerID `json:"worker_id"`
	URL      string      `json:"url,omitempty"`
	Location string      `json:"location,omitempty"`
	Message  string      `json:"message"`
	Warnings []string    `json:"warnings,omitempty"` // what was asked for and has no effect
}

// addWorker adds one. It joins when its engine has answered.
func (a *App) addWorker(v *visit) error {
	var doc registry.Document
	warnings, err := v.fields(&doc)
	if err != nil {
		return err
	}
	spec, err := doc.Spec()
	if err != nil {
		return badRequest(err.Error())
	}
	id, err := a.cfg.Fleet.Registry.Add(spec)
	if err != nil {
		e := changeError(err)
		if errors.Is(err, registry.ErrExists) {
			e.Message += ": " + string(id)
		}
		return e
	}
	location := "/workers/" + url.PathEscape(string(id))
	v.c.Response().Header.Set(fiber.HeaderLocation, location)
	return v.document(http.StatusAccepted, accepted{
		Status: "accepted", ID: id, URL: spec.URL, Location: location,
		Message: "the worker joins as soon as its engine has answered", Warnings: warnings,
	})
}

// updateBody is what may be changed of a worker; null is as good as nothing. The
// three that cannot be changed may be given as they are.
type updateBody struct {
	Priority  *int               `json:"priority"`
	Cost      *float64           `json:"cost"`
	Labels    map[string]*string `json:"labels"`
	APIKey    *string            `json:"api_key"`
	Model     *string            `json:"model_id"`
	Unchecked *bool              `json:"disable_health_check"`

	URL           *string `json:"url"`
	Type          *string `json:"worker_type"`
	BootstrapPort *int    `json:"bootstrap_port"`
}

// putWorker changes what the body names; labels that it gives are all of them.
func (a *App) putWorker(v *visit) error { return a.updateWorker(v, nil) }

// patchWorker changes what the body names, labels one by one: null ends one.
func (a *App) patchWorker(v *visit) error {
	return a.updateWorker(v, func(w *pd.Worker) map[string]string { return maps.Clone(w.Labels) })
}

// updateWorker changes a worker whose labels are laid over what before says.
func (a *App) updateWorker(v *visit, before func(*pd.Worker) map[string]string) error {
	id, err := v.workerID()
	if err != nil {
		return err
	}
	var body updateBody
	warnings, err := v.fields(&body)
	if err != nil {
		return err
	}
	err = a.drains.alone(func() error { // else of two who patch labels at once, one would be forgotten
		found := a.found(id)
		if len(found) == 0 {
			return unknownWorker()
		}
		w := found[0].Worker
		if err := body.stays(w); err != nil {
			return err
		}
		change := registry.Change{
			Priority: body.Priority, Cost: body.Cost, Model: body.Model, APIKey: body.APIKey, Unchecked: body.Unchecked,
		}
		if body.Labels != nil {
			change.Labels = make(map[string]string)
			if before != nil {
				maps.Copy(change.Labels, before(w))
			}
			relabel(change.Labels, body.Labels)
		}
		if err := a.cfg.Fleet.Registry.Update(id, change); err != nil {
			return changeError(err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return v.document(http.StatusAccepted, accepted{
		Status: "accepted", ID: id, Message: "the worker has been changed", Warnings: warnings,
	})
}

// relabel lays change over labels; nil ends one.
func relabel(labels map[string]string, change map[string]*string) {
	for name, value := range change {
		if value == nil {
			delete(labels, name)
		} else {
			labels[name] = *value
		}
	}
}

// stays refuses what would make another worker of w.
func (b *updateBody) stays(w *pd.Worker) error {
	const instead = " of a worker cannot change: delete it and add another"
	if b.URL != nil {
		if u, err := registry.ParseURL(*b.URL); err != nil || u != w.URL {
			return badRequest("url: that" + instead)
		}
	}
	if b.Type != nil && *b.Type != w.Role.String() {
		return badRequest("worker_type: that" + instead)
	}
	if b.BootstrapPort != nil && *b.BootstrapPort != w.BootstrapPort {
		return badRequest("bootstrap_port: that" + instead)
	}
	return nil
}

// removeWorker takes one out. It is drained first.
func (a *App) removeWorker(v *visit) error {
	id, err := v.workerID()
	if err != nil {
		return err
	}
	if err := a.cfg.Fleet.Registry.Remove(id); err != nil {
		return changeError(err)
	}
	return v.document(http.StatusAccepted, accepted{
		Status: "accepted", ID: id, Message: "the worker takes no new work, and goes when it has finished what it has",
	})
}

// withoutEffect are the fields of the gateway's API that a worker of this router
// has no use for. They may be given, and the answer says so.
func withoutEffect(name string) bool {
	switch name {
	case "runtime", "runtime_type", "connection_mode", "provider", "models", "dp_aware",
		"tokenizer_path", "reasoning_parser", "tool_parser", "chat_template",
		"health_check_timeout_secs", "health_check_interval_secs", "health_success_threshold",
		"health_failure_threshold", "max_connection_attempts", "load_monitor_interval_secs",
		"health", "http_pool", "resilience",
		"dp_base_url", "dp_rank", "dp_size", "kv_connector", "kv_role", "kv_engine_id", "kv_block_size":
		return true
	}
	return false
}

// fields reads the body into a struct that has all of its members but those
// without effect. Of these, warnings are made.
func (v *visit) fields(into any) (warnings []string, err error) {
	unused, err := v.object(into, withoutEffect)
	if err != nil {
		return nil, err
	}
	for name, value := range unused {
		if value.Kind() != jsontext.KindNull {
			warnings = append(warnings, name+" has no effect in this router")
		}
	}
	slices.Sort(warnings)
	return warnings, nil
}

// object reads the body, a JSON object, into a struct that has all of its members
// but those to be set apart. The error names the member and shows nothing of its
// value, which may be a key.
func (v *visit) object(into any, isApart func(name string) bool) (apart map[string]jsontext.Value, err error) {
	body, err := v.body(workerBody)
	if err != nil {
		return nil, err
	}
	var all map[string]jsontext.Value
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, fieldError(err)
	}
	if all == nil {
		return nil, badRequest("the body must be a JSON object")
	}
	apart = make(map[string]jsontext.Value)
	for name, value := range all {
		if isApart(name) {
			apart[name] = value
			delete(all, name)
		}
	}
	rest, err := json.Marshal(all, json.Deterministic(true)) // so that of several mistakes it is always the same
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(rest, into, json.RejectUnknownMembers(true)); err != nil {
		return nil, fieldError(err)
	}
	return apart, nil
}

// fieldName is what a member's name may look like to be shown: what does not may
// be a key in the wrong place.
var fieldName = regexp.MustCompile(`^[A-Za-z_-]{1,40}$`)

// fieldError says what is wrong with a body.
func fieldError(err error) *pd.Error {
	semantic, ok := errors.AsType[*json.SemanticError](err)
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return badRequest("the body gives a field twice")
	case !ok:
		return badRequest("the body is not valid JSON")
	case semantic.JSONPointer == "":
		return badRequest("the body must be a JSON object")
	}
	name := slices.Collect(semantic.JSONPointer.Tokens())[0] // within it are labels
	if !fieldName.MatchString(name) {
		name = "a field"
	}
	if errors.Is(err, json.ErrUnknownName) {
		return badRequest(name + ": there is no such field")
	}
	return badRequest(fmt.Sprintf("%s: want %s", name, wanted(semantic.GoType)))
}

// wanted is what a member of that type must be.
func wanted(t reflect.Type) string {
	if t == nil {
		return "another kind of value"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.String:
		return "a text"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Map:
		return "names with texts"
	default:
		return "another kind of value"
	}
}
