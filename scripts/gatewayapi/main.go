// Command gatewayapi writes the CustomResourceDefinitions of the Gateway API as the package
// manifests embeds them: those of the standard channel, as small as they can be without a
// difference for objects. Each server keeps the definitions in memory, and a new cluster
// works through each of them several times. The Makefile calls it.
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

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// download returns the folder of the module, and downloads it if it is not in the module cache.
func download() (string, error) {
	command := exec.Command("go", "mod", "download", "-json", module)
	command.Stderr = os.Stderr
	text, err := command.Output()
	var result struct{ Dir, Error string }
	if parsing := json.Unmarshal(text, &result); parsing != nil {
		return "", errors.Join(err, parsing)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, result.Error)
	}
	return result.Dir, nil
}

// definitions returns the CustomResourceDefinitions of the module, each in a line of JSON.
func definitions() ([]byte, error) {
	dir, err := download()
	if err != nil {
		return nil, fmt.Errorf("download module %s: %w", module, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, standard, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the module %s has no files in %s", module, standard)
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
			if err := shorten(object); err != nil {
				return nil, fmt.Errorf("shorten %s: %w", file, err)
			}
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

// deepest is down to which depth of fields descriptions stay, so that `kubectl explain`
// explains, for example, gateway.spec.listeners.
const deepest = 3

// shorten makes the schemas of a definition small. Versions that are not served keep only
// their names, because objects may have been stored in them. In v1, the upper fields keep the
// first sentences of their descriptions. The other served versions have the same fields.
func shorten(definition map[string]any) error {
	versions, found, err := unstructured.NestedSlice(definition, "spec", "versions")
	if err != nil || !found {
		return fmt.Errorf("it has no versions: %w", err)
	}
	for _, each := range versions {
		version, is := each.(map[string]any)
		if !is {
			return errors.New("a version is no object")
		}
		switch {
		case version["served"] != true:
			version["schema"] = map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
		case version["name"] == "v1":
			describe(version["schema"], deepest)
		default:
			describe(version["schema"], -1)
		}
	}
	return unstructured.SetNestedSlice(definition, versions, "spec", "versions")
}

// describe shortens descriptions in a part of a schema to their first sentences, and removes
// those of fields that are deeper than depth. A field that is called description stays.
func describe(part any, depth int) {
	switch part := part.(type) {
	case map[string]any:
		for key, value := range part {
			text, isText := value.(string)
			fields, hasFields := value.(map[string]any)
			switch {
			case key == "description" && isText && depth < 0:
				delete(part, key)
			case key == "description" && isText:
				part[key] = sentence(text)
			case key == "properties" && hasFields:
				for _, field := range fields {
					describe(field, depth-1)
				}
			default:
				describe(value, depth)
			}
		}
	case []any:
		for _, each := range part {
			describe(each, depth)
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
