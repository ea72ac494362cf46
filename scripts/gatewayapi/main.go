// Command gatewayapi writes the CustomResourceDefinitions of the Gateway API as the package
// manifests embeds them: those of the standard channel, with the first sentence of each
// description. They are 1.2 MB as the module has them, and 23 kB then. Call it when go.mod
// has another version of sigs.k8s.io/gateway-api:
//
//	go run ./scripts/gatewayapi >manifests/gateway/definitions.json.gz
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// module has the definitions in the folder standard.
const (
	module   = "sigs.k8s.io/gateway-api"
	standard = "config/crd/standard"
)

func main() {
	text, err := definitions()
	if err == nil {
		err = pack(os.Stdout, text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gatewayapi:", err)
		os.Exit(1)
	}
}

// pack compresses the text.
func pack(w io.Writer, text []byte) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := compressed.Write(text); err != nil {
		return err
	}
	return compressed.Close()
}

// definitions returns the CustomResourceDefinitions of the module, each in a line of JSON.
func definitions() ([]byte, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return nil, fmt.Errorf("find module %s: %w", module, err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), standard, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the module %s has no files in %s: run `go mod download %[1]s`", module, standard)
	}
	var lines bytes.Buffer
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), len(content))
		for {
			var object map[string]any
			err := decoder.Decode(&object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("parse %s: %w", file, err)
			}
			if object["kind"] != "CustomResourceDefinition" {
				continue
			}
			shorten(object)
			line, err := json.Marshal(object)
			if err != nil {
				return nil, fmt.Errorf("encode %s: %w", file, err)
			}
			lines.Write(line)
			lines.WriteByte('\n')
		}
	}
	return lines.Bytes(), nil
}

// shorten replaces all descriptions in a part of an object by their first sentences. A
// property that is called description is no text, and stays.
func shorten(part any) {
	switch part := part.(type) {
	case map[string]any:
		for key, value := range part {
			if text, is := value.(string); is && key == "description" {
				part[key] = sentence(text)
			} else {
				shorten(value)
			}
		}
	case []any:
		for _, each := range part {
			shorten(each)
		}
	}
}

// end is where a sentence ends and the next one begins.
var end = regexp.MustCompile("[.!?] [A-Z`\"*<]")

// sentence returns the first sentence of a text, in one line.
func sentence(text string) string {
	paragraph, _, _ := strings.Cut(text, "\n\n")
	line := strings.Join(strings.Fields(paragraph), " ")
	if found := end.FindStringIndex(line); found != nil {
		line = line[:found[0]+1]
	}
	return line
}
