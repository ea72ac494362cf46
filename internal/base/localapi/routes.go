package localapi

import "net/http"

// Endpoint is one line of the table of routes.
type Endpoint int

// The questions that commands can ask. The comments name the commands.
const (
	Status             Endpoint = iota // kedge status
	Settings                           // kedge config print
	ReloadSettings                     // kedge config reload
	LogLevels                          // kedge log-level
	SetLogLevels                       // kedge log-level LEVEL
	Goroutines                         // kedge support-bundle
	Heap                               // kedge support-bundle
	RenewCertificates                  // kedge certificate rotate
	ReplaceAuthorities                 // kedge certificate rotate-ca
	LaggingAuthorities                 // kedge certificate rotate-ca --finish
	Encryption                         // kedge secrets-encrypt status
	RotateEncryption                   // kedge secrets-encrypt rotate
	Reencrypt                          // kedge secrets-encrypt reencrypt
	ListSnapshots                      // kedge snapshot list
	SaveSnapshot                       // kedge snapshot save
	DeleteSnapshots                    // kedge snapshot delete
	PruneSnapshots                     // kedge snapshot prune
	MakeBackupKey                      // kedge backup key
	ExplainPolicies                    // kedge netpol explain
)

// The kinds of kedge that answer.
const (
	every     = ""
	aServer   = "kedge server"
	withAPI   = "kedge server with an API server"
	oneOfMany = "kedge server that shares its datastore with others"
	enforces  = "kedge server with an API server, in a cluster whose settings do not disable network-policy,"
)

// table is the list of all questions that commands can ask the kedge on their host. Only
// root may ask: Server.mayCall. The parts have the handlers, and the boot lists pass them
// to Server.With.
var table = [...]struct{ method, path, who string }{
	// method, path, which kedge answers
	Status:             {http.MethodGet, "/v1/status", every},
	Settings:           {http.MethodGet, "/v1/settings", every},
	ReloadSettings:     {http.MethodPost, "/v1/settings/reload", every},
	LogLevels:          {http.MethodGet, "/v1/log-levels", every},
	SetLogLevels:       {http.MethodPut, "/v1/log-levels", every},
	Goroutines:         {http.MethodGet, "/v1/profiles/goroutine", every},
	Heap:               {http.MethodGet, "/v1/profiles/heap", every},
	RenewCertificates:  {http.MethodPost, "/v1/certificates/renew", every},
	ReplaceAuthorities: {http.MethodPost, "/v1/authorities/replace", oneOfMany},
	LaggingAuthorities: {http.MethodPost, "/v1/authorities/lagging", aServer},
	Encryption:         {http.MethodGet, "/v1/encryption", withAPI},
	RotateEncryption:   {http.MethodPost, "/v1/encryption/rotate", withAPI},
	Reencrypt:          {http.MethodPost, "/v1/encryption/reencrypt", withAPI},
	ListSnapshots:      {http.MethodGet, "/v1/snapshots", aServer},
	SaveSnapshot:       {http.MethodPost, "/v1/snapshots", aServer},
	DeleteSnapshots:    {http.MethodPost, "/v1/snapshots/delete", aServer},
	PruneSnapshots:     {http.MethodPost, "/v1/snapshots/prune", aServer},
	MakeBackupKey:      {http.MethodPost, "/v1/backup/key", withAPI},
	ExplainPolicies:    {http.MethodPost, "/v1/policies/explain", enforces},
}

// Endpoints returns the whole table.
func Endpoints() (all []Endpoint) {
	for i := range table {
		all = append(all, Endpoint(i))
	}
	return all
}

// find returns the endpoint of a request, if there is one, and all methods that its path
// has.
func find(method, path string) (e Endpoint, found bool, methods []string) {
	for i, line := range table {
		if line.path != path {
			continue
		}
		methods = append(methods, line.method)
		if line.method == method {
			e, found = Endpoint(i), true
		}
	}
	return e, found, methods
}

// String returns METHOD PATH.
func (e Endpoint) String() string { return table[e].method + " " + table[e].path }

// unready returns why no part answers now, and what to do.
func (e Endpoint) unready() string {
	if who := table[e].who; who != every {
		return "only a " + who + " can do this, once it is ready. Run this command on such a server, and check `kedge status`"
	}
	return "it is starting or stopping. Read its log, and try again"
}
