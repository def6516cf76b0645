package loop

// Builtin lists the analyzers of this package, in the order in which they run.
func Builtin() []Analyzer {
	return []Analyzer{
		moduleFailure{}, timeoutPressure{}, deadlinePressure{}, unknownModule{}, aclDenial{},
		approvalFriction{}, approvalRejection{}, taskOutcome{}, retryStorm{}, stuckTask{},
		schemaDrift{}, callGraph{}, versionFork{}, nodeSkew{}, staleSetting{},
		coldModule{}, duplicateModule{}, lessonPile{}, skillStall{}, outcomeReview{},
	}
}

// DefaultRuns are the analyzers that are on unless switched off, with their default
// parameters.
func DefaultRuns() []Run {
	var runs []Run
	for _, a := range Builtin() {
		m := a.Manifest()
		if !m.DefaultOn {
			continue
		}
		params, err := m.ResolveParams(nil)
		if err != nil { // defaults always resolve
			continue
		}
		runs = append(runs, Run{a, params})
	}
	return runs
}
