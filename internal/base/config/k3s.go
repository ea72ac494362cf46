package config

import (
	"slices"
	"strconv"
	"strings"
)

// Verdict says what becomes of a name of k3s's.
type Verdict string

// The verdicts, as the documents print them.
const (
	Same     Verdict = "the same"
	Alias    Verdict = "another name"
	Needless Verdict = "nothing to set"
	Refused  Verdict = "not possible"
)

// K3sKey is the verdict on a flag of k3s's server or agent, which is also a key of its
// configuration file.
type K3sKey struct {
	Key     string
	Verdict Verdict
	// To is kedge's key, if the verdict is Alias.
	To string
	// Says has whole sentences: what is different, why there is nothing to set, or what to
	// do instead. It may be empty for Same and Alias.
	Says string
}

// K3sValue is the verdict on one value of a key of k3s's, which goes before the verdict on
// the key. A value NAME= stands for an argument of an upstream program with any value. To
// is kedge's value, if the verdict is Alias.
type K3sValue struct {
	Key, Value string
	Verdict    Verdict
	To         string
	Says       string
}

// K3sKeys returns the verdicts on k3s's keys, in the order of k3s's documentation.
func K3sKeys() []K3sKey { return slices.Clone(k3sKeys) }

// K3sOnly returns the keys of k3s's that are no keys of kedge's.
func K3sOnly() []K3sKey {
	return slices.DeleteFunc(K3sKeys(), func(row K3sKey) bool { return row.Verdict == Same })
}

// Letters returns the letter that stands for a key on the command line, if there is one.
func Letters(key string) []string {
	if letter := k3sLetters[key]; letter != "" {
		return []string{letter}
	}
	return nil
}

// SecretFlags returns the names of all flags whose values must not be shown: kedge's, k3s's
// and letters.
func SecretFlags() []string {
	var names []string
	secret := map[string]bool{"vpn-auth": true} // a key of a VPN, which kedge refuses
	for _, f := range Default().Fields() {
		secret[f.Key] = f.Secret
		if f.Secret {
			names = append(append(names, f.Key), Letters(f.Key)...)
		}
	}
	for _, row := range K3sOnly() {
		if secret[row.Key] || row.Verdict == Alias && secret[row.To] {
			names = append(names, row.Key)
		}
	}
	return names
}

// IsSwitch tells whether the key, which is not one of kedge's, is true or false in k3s.
func (k K3sKey) IsSwitch() bool { return slices.Contains(k3sSwitches, k.Key) }

// K3sKeyOf returns the verdict on a key of k3s's, and false if k3s has no such key.
func K3sKeyOf(key string) (K3sKey, bool) {
	for _, row := range k3sKeys {
		if row.Key == key {
			return row, true
		}
	}
	return K3sKey{}, false
}

// is tells whether the verdict is on a value.
func (v K3sValue) is(value string) bool {
	if strings.HasSuffix(v.Value, "=") {
		return strings.HasPrefix(strings.TrimLeft(value, "-"), v.Value)
	}
	return v.Value == value
}

// Judge returns the verdict on a key of k3s's that has a value: that on the value, if there
// is one, or that on the key. An empty value, and a switch that is off, need nothing.
func (k K3sKey) Judge(value string) (verdict Verdict, says string) {
	for _, row := range k3sValues {
		if row.Key == k.Key && row.is(value) {
			return row.Verdict, row.Says
		}
	}
	on, err := strconv.ParseBool(value)
	if k.Verdict == Refused && (value == "" || k.IsSwitch() && err == nil && !on) {
		return Needless, ""
	}
	return k.Verdict, k.Says
}

// Notice is what the user should know about a name in the configuration.
type Notice struct {
	// Source is where the name was given: FILE:LINE, $VARIABLE or --FLAG.
	Source string
	// Name is the key that was given, or the variable.
	Name    string
	Verdict Verdict
	// Says has whole sentences. It is never a secret.
	Says string
}

// String is the notice in a line of a log.
func (n Notice) String() string {
	if strings.HasSuffix(n.Source, n.Name) {
		return n.Source + ": " + n.Says
	}
	return n.Source + ": " + n.Name + ": " + n.Says
}

// translate returns the key and the values by which kedge has what a name and its values
// mean, which source gave. The key is empty if there is nothing to set. translate notes
// what the user should know. A name that k3s does not have is returned as it is.
func (c *Config) translate(name string, values []string, source string) (key string, translated []string, err error) {
	row, known := K3sKeyOf(name)
	if !known {
		return name, values, nil
	}
	key = name
	if row.Verdict == Alias {
		key = row.To
		c.note(Notice{source, name, Alias, "This is k3s's name: kedge's is " + key + "."})
	}
	if len(values) == 0 && (row.Verdict == Needless || row.Verdict == Refused) {
		return "", nil, nil
	}
	for _, value := range values {
		switch verdict, says := row.Judge(value); verdict {
		case Refused:
			says = "k3s has this, and kedge does not. " + says
			c.note(Notice{source, name, Refused, says})
			return "", nil, &FieldError{name, says}
		case Needless:
			if says != "" {
				c.note(Notice{source, name, Needless, says})
			}
			if row.Verdict != Same {
				return "", nil, nil
			}
			if isArgument(name) {
				continue // the program would refuse it
			}
		case Alias:
			for _, v := range k3sValues {
				if v.Key == name && v.Value == value && v.To != "" {
					c.note(Notice{source, name, Alias, "The value " + value + " is k3s's: kedge has " + key + ": " + v.To + "."})
					value = v.To
				}
			}
		case Same:
		}
		translated = append(translated, value)
	}
	return key, translated, nil
}

// note keeps what the user should know about the configuration, once.
func (c *Config) note(n Notice) {
	if !slices.Contains(c.Notices, n) {
		c.Notices = append(c.Notices, n)
	}
}
