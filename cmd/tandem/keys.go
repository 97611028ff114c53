package main

import (
	"errors"
	"net/url"
	"strings"
)

func (l *commandLine) addKeys(add addFlag) {
	c := l.cfg
	add("api-key", secretValue(&c.apiKey), "key that clients must send as a bearer; health and info ask for none")
	add("worker-api-key", secretValue(&c.workerKey), "key that is sent to the workers, in place of the client's")
	add("cors-allowed-origins", originsValue(&c.origins), "web origins whose pages may call the router, or * for any; none by default")
}

// secretValue is a key that can stand in a header. It is never shown.
func secretValue(dst *string) *flagValue {
	return &flagValue{typ: "key", secret: true, parse: func(text string) error {
		if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return errors.New("want a key of visible ASCII characters")
		}
		*dst = text
		return nil
	}}
}

// originsValue is a list of web origins. The last one given counts.
func originsValue(dst *[]string) *flagValue {
	return &flagValue{typ: "origins", words: true, parse: func(text string) error {
		names := strings.Fields(text)
		for _, name := range names {
			u, err := url.Parse(name)
			if name != "*" && (err != nil || u.Host == "" || u.Scheme+"://"+u.Host != name) {
				return errors.New("want origins as browsers name them, such as https://app.example, or *")
			}
		}
		*dst = names
		return nil
	}}
}
