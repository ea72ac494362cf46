package routing

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Check returns an error if no server sends such a route.
func (r *Route) Check() error {
	if !isName(r.Name) {
		return errors.New("invalid name")
	}
	for _, name := range r.Hostnames {
		if !isHostname(name, true) {
			return fmt.Errorf("invalid host name %q", name)
		}
	}
	if r.Stream != nil {
		if len(r.Rules) > 0 {
			return errors.New("a route of connections has rules for requests")
		}
		return r.Stream.check()
	}
	size := 0
	for i := range r.Rules {
		if err := r.Rules[i].Check(&size); err != nil {
			return fmt.Errorf("rule %d: %w", i, err)
		}
	}
	return nil
}

// Check returns an error if no server sends a route with such a rule. It adds the steps of
// the rule's regular expressions to size, which has those of the rules before it in the route.
func (r *Rule) Check(size *int) error {
	if r.Name != "" && !isName(r.Name) {
		return fmt.Errorf("invalid name %q", r.Name)
	}
	for i := range r.Matches {
		if err := r.Matches[i].check(size); err != nil {
			return fmt.Errorf("match %d: %w", i, err)
		}
	}
	if *size > maxRegexps {
		return fmt.Errorf("the regular expressions of the route are too large: more than %d steps", maxRegexps)
	}
	if err := checkFilters(r.Filters); err != nil {
		return err
	}
	if err := checkDurations(r.Timeout, r.BackendTimeout); err != nil {
		return err
	}
	if r.MaxBody < 0 {
		return fmt.Errorf("invalid size of a body %d", r.MaxBody)
	}
	if r.Retry != nil {
		if r.Retry.Attempts < 0 || r.Retry.Attempts > maxAttempts {
			return fmt.Errorf("invalid number of attempts %d", r.Retry.Attempts)
		}
		if i := slices.IndexFunc(r.Retry.Codes, func(code int) bool { return !isFault(code) }); i >= 0 {
			return fmt.Errorf("invalid status %d", r.Retry.Codes[i])
		}
		if err := checkDurations(r.Retry.Backoff); err != nil {
			return err
		}
	}
	if r.Auth != nil && (!isFieldValue(r.Auth.Realm) || len(r.Auth.Users) > maxPEM) {
		return errors.New("invalid authentication")
	}
	return r.Split.check()
}

func (m *Match) check(size *int) error {
	if m.Method != "" && !isToken(m.Method) {
		return fmt.Errorf("invalid method %q", m.Method)
	}
	switch m.PathType {
	case Exact, PathPrefix:
		if !isText(m.Path) || m.Path == "" || m.Path[0] != '/' {
			return fmt.Errorf("invalid path %q", m.Path)
		}
	case Regexp:
		if err := addRegexp(m.Path, size); err != nil {
			return err
		}
	default:
		return fmt.Errorf("invalid type of a path %q", m.PathType)
	}
	for _, header := range m.Headers {
		if !isToken(header.Name) {
			return fmt.Errorf("invalid header %q", header.Name)
		}
	}
	for _, parameter := range m.Query {
		if parameter.Name == "" || !isText(parameter.Name) {
			return fmt.Errorf("invalid parameter %q", parameter.Name)
		}
	}
	for _, field := range slices.Concat(m.Headers, m.Query) {
		switch field.Type {
		case Exact: // a value that no request can have matches none
			if len(field.Value) > maxText {
				return fmt.Errorf("the value of %s is too long", field.Name)
			}
		case Regexp:
			if err := addRegexp(field.Value, size); err != nil {
				return err
			}
		default:
			return fmt.Errorf("invalid type of a field %q", field.Type)
		}
	}
	return nil
}

func (s *Split) check() error {
	for _, target := range s.Targets {
		if target.Backend != "" && !isName(target.Backend) {
			return fmt.Errorf("invalid name of a backend %q", target.Backend)
		}
		if target.Fault != 0 && !isFault(target.Fault) {
			return fmt.Errorf("invalid status %d", target.Fault)
		}
		if target.Weight < 0 || target.Weight > maxWeight {
			return fmt.Errorf("invalid weight %d", target.Weight)
		}
		if err := checkFilters(target.Filters); err != nil {
			return err
		}
	}
	if s.Session == nil {
		return nil
	}
	if !isToken(s.Session.Name) {
		return fmt.Errorf("invalid name of a session %q", s.Session.Name)
	}
	return checkDurations(s.Session.Absolute, s.Session.Idle)
}

func checkFilters(filters []Filter) error {
	for i := range filters {
		if err := filters[i].check(); err != nil {
			return fmt.Errorf("filter %d: %w", i, err)
		}
	}
	return nil
}

func (f *Filter) check() error {
	var checks []func() error
	if f.RequestHeaders != nil {
		checks = append(checks, f.RequestHeaders.check)
	}
	if f.ResponseHeaders != nil {
		checks = append(checks, f.ResponseHeaders.check)
	}
	if f.Redirect != nil {
		checks = append(checks, f.Redirect.check)
	}
	if f.Rewrite != nil {
		checks = append(checks, func() error { return checkPlace(f.Rewrite.Hostname, f.Rewrite.Path) })
	}
	if f.Mirror != nil {
		checks = append(checks, f.Mirror.check)
	}
	if f.CORS != nil {
		checks = append(checks, f.CORS.check)
	}
	if f.Fault != 0 {
		checks = append(checks, func() error {
			if !isFault(f.Fault) {
				return fmt.Errorf("invalid status %d", f.Fault)
			}
			return nil
		})
	}
	if len(checks) != 1 {
		return fmt.Errorf("a filter does %d things instead of one", len(checks))
	}
	return checks[0]()
}

func (h *Headers) check() error {
	for _, header := range slices.Concat(h.Set, h.Add) {
		if !isToken(header.Name) || !isFieldValue(header.Value) {
			return fmt.Errorf("invalid header %q", header.Name)
		}
	}
	for _, name := range h.Remove {
		if !isToken(name) {
			return fmt.Errorf("invalid header %q", name)
		}
	}
	return nil
}

func (r *Redirect) check() error {
	if r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https" {
		return fmt.Errorf("invalid scheme %q", r.Scheme)
	}
	switch r.Code {
	case 301, 302, 303, 307, 308:
	default:
		return fmt.Errorf("invalid status of a redirect %d", r.Code)
	}
	return checkPlace(r.Hostname, r.Path)
}

func (m *Mirror) check() error {
	if !isName(m.Backend) {
		return fmt.Errorf("invalid name of a backend %q", m.Backend)
	}
	if m.Denominator <= 0 || m.Numerator < 0 || m.Numerator > m.Denominator {
		return fmt.Errorf("invalid part of requests %d/%d", m.Numerator, m.Denominator)
	}
	return nil
}

func (c *CORS) check() error {
	for _, origin := range c.AllowOrigins {
		if !isVisible(origin) || len(origin) > maxName {
			return fmt.Errorf("invalid origin %q", origin)
		}
	}
	// "*" is a token, too.
	for _, name := range slices.Concat(c.AllowMethods, c.AllowHeaders, c.ExposeHeaders) {
		if !isToken(name) {
			return fmt.Errorf("invalid method or header %q", name)
		}
	}
	if c.MaxAge < 0 {
		return fmt.Errorf("invalid age %d", c.MaxAge)
	}
	return nil
}

// checkPlace checks where a redirect or a rewrite leads.
func checkPlace(hostname string, path *Path) error {
	if hostname != "" && !isHostname(hostname, false) {
		return fmt.Errorf("invalid host name %q", hostname)
	}
	if path != nil && !isText(path.Value) {
		return fmt.Errorf("invalid path %q", path.Value)
	}
	return nil
}

func checkDurations(durations ...time.Duration) error {
	for _, duration := range durations {
		if duration < 0 || duration > maxDuration {
			return fmt.Errorf("invalid duration %s", duration)
		}
	}
	return nil
}
