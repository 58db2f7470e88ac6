"""``sluicemq doctor``: what is wrong with a set-up, how bad it is, and what to do.

Each check is a function from the :class:`Subject` to findings, in the file of what it looks at. Checks work
with what there is: a broker that runs, its MongoDB alone, or a configuration file alone.
"""

from sluicemq_broker.doctor.examination import Examination, UnusableFile, examine, findings_of
from sluicemq_broker.doctor.finding import Finding, Level, worst
from sluicemq_broker.doctor.subject import Answers, ExaminedStore, Host, Subject
