package config

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Role says which command a Field belongs to.
type Role string

// The roles. A field without one belongs to both commands.
const (
	AnyRole    Role = ""
	ServerRole Role = "server"
	AgentRole  Role = "agent"
)

// Field is one setting of a Config, as its struct tags declare it.
type Field struct {
	// Key is the field's name in the configuration file and, after two
	// dashes, on the command line.
	Key   string
	Usage string
	Role  Role
	// Secret says that the value, or a password in it, must not be shown: see Shown.
	Secret bool
	// Reloads says that a kedge that runs can take another value.
	Reloads bool

	url   bool
	file  bool
	env   string
	value reflect.Value
}

// Fields returns all settings of c in the order of their declaration. Setting
// one of them sets it in c.
func (c *Config) Fields() []Field {
	return fieldsOf(reflect.ValueOf(c).Elem())
}

func fieldsOf(v reflect.Value) []Field {
	var fields []Field
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		key, isSetting := tag.Lookup("key")
		if !isSetting {
			if v.Field(i).Kind() == reflect.Struct {
				fields = append(fields, fieldsOf(v.Field(i))...)
			}
			continue
		}
		fields = append(fields, Field{
			Key:     key,
			Usage:   tag.Get("usage"),
			Role:    Role(tag.Get("role")),
			Secret:  tag.Get("secret") != "",
			Reloads: tag.Get("reload") == "true",
			url:     tag.Get("secret") == "url",
			file:    tag.Get("file") != "",
			env:     tag.Get("env"),
			value:   v.Field(i),
		})
	}
	return fields
}

// Env returns the name of the environment variable for f.
func (f Field) Env() string {
	return cmp.Or(f.env, "KEDGE_"+strings.ToUpper(strings.ReplaceAll(f.Key, "-", "_")))
}

// IsBool and IsList say what kind of flag f is; it is a text or a number
// otherwise.
func (f Field) IsBool() bool { return f.value.Kind() == reflect.Bool }

// IsList: see IsBool.
func (f Field) IsList() bool { return f.value.Kind() == reflect.Slice }

// IsInt: see IsBool.
func (f Field) IsInt() bool { return f.value.Kind() == reflect.Int }

// String returns the value as it would stand on the command line, a list with
// commas.
func (f Field) String() string {
	if f.IsList() {
		return strings.Join(f.value.Interface().([]string), ",")
	}
	return fmt.Sprint(f.value.Interface())
}

// Same tells whether f has the value of another Config's field.
func (f Field) Same(other Field) bool {
	return reflect.DeepEqual(f.value.Interface(), other.value.Interface())
}

// Set gives the field the value that texts mean: one text, or any number for a
// list. In lists of addresses and names a text may itself hold several with
// commas between them; arguments of upstream's programs are taken as they are.
func (f Field) Set(texts ...string) error {
	if f.IsList() {
		var list []string
		for _, text := range texts {
			if isArgument(f.Key) {
				list = append(list, text)
				continue
			}
			for part := range strings.SplitSeq(text, ",") {
				if part = strings.TrimSpace(part); part != "" {
					list = append(list, part)
				}
			}
		}
		f.value.Set(reflect.ValueOf(list))
		return nil
	}
	if len(texts) != 1 {
		return &FieldError{f.Key, fmt.Sprintf("takes one value, got %d", len(texts))}
	}
	text := texts[0]
	switch f.value.Kind() {
	case reflect.String:
		f.value.SetString(text)
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return &FieldError{f.Key, fmt.Sprintf("takes a whole number such as %v, got %q", f.value.Interface(), text)}
		}
		f.value.SetInt(int64(n))
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return &FieldError{f.Key, fmt.Sprintf("takes true or false, got %q", text)}
		}
		f.value.SetBool(b)
	default:
		panic("config: field " + f.Key + " has a type that Set does not know")
	}
	return nil
}

// isArgument tells whether a key is for arguments of an upstream program.
func isArgument(key string) bool { return strings.HasSuffix(key, "-arg") }

// FieldError is a fault in one setting.
type FieldError struct {
	Key    string
	Detail string
}

func (e *FieldError) Error() string { return e.Key + ": " + e.Detail }
