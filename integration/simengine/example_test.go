package simengine_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// A pair serves a request that both sides get, with the same room.
func Example() {
	prefill, err := simengine.Start(simengine.Config{Role: simengine.Prefill})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer prefill.Close()
	decode, err := simengine.Start(simengine.Config{Role: simengine.Decode})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer decode.Close()

	body, _ := json.Marshal(map[string]any{
		"text": "Hello", "sampling_params": map[string]any{"max_new_tokens": 4},
		"bootstrap_host": prefill.Host(), "bootstrap_port": prefill.BootstrapPort(), "bootstrap_room": 77,
	})
	post := func(e *simengine.Engine) string {
		transport := &http.Transport{DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: transport}).Post(e.URL()+"/generate", "application/json", bytes.NewReader(body))
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		var answer struct {
			Text string `json:"text"`
		}
		text, _ := io.ReadAll(resp.Body)
		if err := json.Unmarshal(text, &answer); err != nil {
			return err.Error()
		}
		return answer.Text
	}
	first := make(chan string)
	go func() { first <- post(prefill) }()
	whole := post(decode)
	want := simengine.Expected(simengine.Tokenize("Hello"), simengine.Params{MaxNewTokens: 4})
	fmt.Println(whole == want.Text)
	fmt.Println(whole[:len(<-first)] != "")
	fmt.Println(decode.Records()[0].Rooms)
	// Output:
	// true
	// true
	// [77]
}
