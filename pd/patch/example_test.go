package patch_test

import (
	"fmt"
	"io"
	"os"

	"github.com/tandem-pd/tandem/pd/patch"
)

// One body goes to the two legs of two samples. Only the few bytes that differ are written anew.
func Example() {
	body := []byte(`{"text": "Hello", "bootstrap_room": 1, "n": 2, "sampling_params": {"sampling_seed": 40}}`)
	doc, err := patch.Scan(body)
	if err != nil {
		fmt.Println(err)
		return
	}
	request := doc.Edit()
	request.Replace("n", []byte("1"))
	for sample := range 2 {
		edit := request.Clone()
		err := edit.ReplaceNested("sampling_params", "sampling_seed", func(_ int, old patch.Value) []byte {
			seed, _ := old.Int()
			return fmt.Append(nil, seed+int64(sample))
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		payload := edit.Payload(patch.Member{Name: "bootstrap_room", Raw: fmt.Append(nil, 7000+sample)})
		for _, leg := range []string{"prefill", "decode"} {
			fmt.Printf("%s, %d bytes: ", leg, payload.Len())
			_, _ = io.Copy(os.Stdout, payload.NewReader())
			fmt.Println()
		}
	}
	// Output:
	// prefill, 89 bytes: {"bootstrap_room":7000,"text": "Hello", "n": 1, "sampling_params": {"sampling_seed": 40}}
	// decode, 89 bytes: {"bootstrap_room":7000,"text": "Hello", "n": 1, "sampling_params": {"sampling_seed": 40}}
	// prefill, 89 bytes: {"bootstrap_room":7001,"text": "Hello", "n": 1, "sampling_params": {"sampling_seed": 41}}
	// decode, 89 bytes: {"bootstrap_room":7001,"text": "Hello", "n": 1, "sampling_params": {"sampling_seed": 41}}
}

func ExampleScan() {
	_, err := patch.Scan([]byte(`{"n": NaN}`))
	fmt.Println(err)
	// Output: NaN or Infinity at byte 6
}

func ExampleDoc_Get() {
	doc, err := patch.Scan([]byte(`{"stream": false, "str\u0065am": true, "n": null}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, _ := doc.Get("stream")
	fmt.Println(stream.Bool())
	_, present := doc.Get("n")
	fmt.Println(present)
	// Output:
	// true true
	// false
}
