package manifests

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// withoutConflicts returns an object without the fields that others have set, as
// the refusal to apply it names them. left has a message to the user for each of
// them. It returns nil if the error is not a conflict.
func withoutConflicts(object *unstructured.Unstructured, refusal error) (lesser *unstructured.Unstructured, left []string) {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsConflict(refusal) || !errors.As(refusal, &status) || status.Status().Details == nil {
		return nil, nil
	}
	lesser = object.DeepCopy()
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict || !remove(lesser.Object, cause.Field) {
			return nil, nil
		}
		// The message is: conflict with "MANAGER" using VERSION.
		left = append(left, fmt.Sprintf("%s: %s is in %s", identityOf(object), cause.Field, cause.Message))
	}
	return lesser, left
}

// remove removes the field at path from a map or list, and tells whether the field
// was there. The path is in structured-merge-diff's notation (fieldpath,
// Path.String). Names of fields may contain dots, so the path can be read only
// along the value.
func remove(value any, path string) bool {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			rest, ok := strings.CutPrefix(path, "."+name)
			switch {
			case !ok:
			case rest == "":
				delete(value, name)
				return true
			case rest[0] == '[':
				list, isList := inner.([]any)
				if !isList {
					continue
				}
				i, rest := find(list, rest)
				if i < 0 {
					continue
				}
				if rest == "" {
					value[name] = slices.Delete(list, i, i+1)
					return true
				}
				if remove(list[i], rest) {
					return true
				}
			case remove(inner, rest):
				return true
			}
		}
	}
	return false
}

// find returns the element of a list that a path begins with, such as
// [name="web"], [="a"] or [3], and the rest of the path. The index is -1 if there
// is none.
func find(list []any, path string) (index int, rest string) {
	type key struct{ name, value string }
	var keys []key
	for rest = path[1:]; ; rest = rest[1:] {
		name, after, isKey := strings.Cut(rest, "=")
		if end := strings.IndexByte(rest, ']'); !isKey || end >= 0 && end < len(name) {
			i, err := strconv.Atoi(rest[:max(end, 0)])
			if err != nil || i >= len(list) {
				return -1, ""
			}
			return i, rest[end+1:]
		}
		value, err := strconv.QuotedPrefix(after)
		if err == nil {
			after = after[len(value):]
			value, _ = strconv.Unquote(value)
		} else {
			end := strings.IndexAny(after, ",]")
			if end < 0 {
				return -1, ""
			}
			value, after = after[:end], after[end:]
		}
		keys, rest = append(keys, key{name, value}), after
		if rest == "" || rest[0] != ',' {
			break
		}
	}
	if !strings.HasPrefix(rest, "]") {
		return -1, ""
	}
	index = slices.IndexFunc(list, func(element any) bool {
		return !slices.ContainsFunc(keys, func(k key) bool {
			value := element
			if fields, ok := element.(map[string]any); ok {
				// A key that the file leaves out has its default value.
				if value, ok = fields[k.name]; !ok {
					return false
				}
			}
			return fmt.Sprint(value) != k.value
		})
	})
	return index, rest[1:]
}
